"""How a step ends on one rank: gradients summed, averaged and judged, and the optimizers stepped.

The executor makes its calls for ``reduce``, ``average``, ``step`` and the relays of norm and
verdict here (:class:`Stepping`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from pipeloom.ir.model import program as ir
from pipeloom.ir.model.program import Program

from ..executor.weight_stashing import make_stashes
from ..measure.op_timer import Call
from ..rank.checks import check_judged
from ..rank.context import Worker
from ..rank.role import has_relays
from ..stages.fsdp import ShardedStages
from ..stages.shared_parameters import SharedParameters
from ..stages.tie_detection import Group
from .data_parallel import make_averaging
from .forward_snapshot import Rewind
from .grad_norm import make_sums, squares_of
from .loss_scale import LossScale
from .norm_groups import NormGroups, check_norm_groups, make_squares
from .optimizer_step import Update
from .optimizers import MakeOptimizer, make_optimizers


class Stepping:
    """A rank's ``optimizers``, by stage, and what they wait for.

    ``modules``: the stages that the rank has for good; ``summed_in``: the dtype of sums over ranks,
    None for the gradients' own; ``stashes``: of stages that step after each microbatch; ``seed``:
    what backward starts with, a microbatch's share in the gradients times the loss scale. The other
    arguments are the pipeline's. All ranks make theirs at the same time.
    """

    def __init__(
        self,
        worker: Worker,
        *,
        optimizer: MakeOptimizer | None,
        tied: Sequence[Group],
        summed_in: torch.dtype | None,
        clip_grad_norm: float | None,
        loss_scale: LossScale | None,
        norm_groups: NormGroups | None,
        relays: bool,
        group: dist.ProcessGroup | None,
        data_group: dist.ProcessGroup | None,
        timeout: float,
    ) -> None:
        program, role, store = worker.program, worker.role, worker.store
        transport, device = worker.transport, worker.device
        self._device = device
        self._microbatches = program.schedule.problem.microbatches
        self.modules = {s: store.module(s) for s in role.held}
        reduced = {
            i.stages for row in program.instructions for i in row if isinstance(i, ir.Reduce)
        }
        shared = self._shared = SharedParameters(
            tied, role.holders, store, transport, reduced=reduced, reduce_dtype=summed_in
        )
        self.reduce = shared.reduction
        self._averaging = make_averaging(
            program, role.rank, store, data_group, summed_in, timeout=timeout
        )
        self.stashes = make_stashes(program, self.modules, worker.memory)
        self.optimizers = {} if optimizer is None else make_optimizers(self.modules, optimizer)
        share = 1.0 if self.stashes else 1.0 / self._microbatches
        self.seed = torch.tensor(share, dtype=torch.float64, device=device)
        judges = clip_grad_norm is not None or loss_scale is not None
        check_norm_groups(
            norm_groups, self.modules, group, data_group, judges=judges, seconds=timeout
        )
        squares = store.squares if isinstance(store, ShardedStages) else squares_of
        if norm_groups:
            squares = make_squares(
                squares,
                norm_groups,
                self.modules,
                tied,
                gather=transport.gather,
                device=device,
                seconds=timeout,
            )
        sums = None
        if judges:
            check_judged(program, clip_grad_norm, optimizer)
            sums = make_sums(transport, role.holders, device, group, timeout, relays=relays)
        if loss_scale is not None:
            self._rescale(loss_scale.scale)
        self.update = Update(
            store,
            self.optimizers,
            sums=sums,
            most=float("inf") if clip_grad_norm is None else clip_grad_norm,
            loss_scale=loss_scale,
            trained=_once(p for m in self.modules.values() for p in m.parameters()),
            counted=_once(p for s in self.modules for p in shared.counted(s)),
            squares=squares,
            rescale=self._rescale,
            ahead=relays,
        )
        self._judges_first = None if has_relays(program) else _first_stepped(program, role.rank)
        self._rewind: Rewind | None = None
        self._refill: Call | None = None

    def begin(self, refill: Call) -> None:
        """Before a step's ops; ``refill`` makes ready for running them once more."""
        if self.update.pending:
            self._refill = refill
            self._rewind = Rewind(self.modules.values(), self._device)
        else:
            self._clear_gradients()

    def give_up(self) -> None:
        """The step has failed: there is no verdict to wait for any more."""
        self.update.pending = False
        self._shared.restore()

    @property
    def averages(self) -> Mapping[int, tuple[float, float]]:
        """When stages were averaged in the last step, in seconds; empty where that is not known."""
        return {} if self._averaging is None else self._averaging.spans

    def average(self, stage: int) -> Callable[[], None]:
        """The call of an ``average``."""
        assert self._averaging is not None
        return partial(self._averaging.begin, stage)

    def step(self, stage: int) -> Call:
        """The call of a ``step``; where no sums are relayed a rank's first one judges before."""
        if stage in self.stashes:
            return partial(self.stashes[stage].step, self.optimizers.get(stage))
        step = partial(self.update.step, stage)
        if stage != self._judges_first:
            return step

        def judge_and_step() -> None:
            self.judge()
            step()

        return judge_and_step

    def judge(self) -> None:
        """What all gradients come to, once they are averaged over the replicas."""
        if self._averaging is not None:
            self._averaging.finish()
        self.update.judge()

    def validate(self) -> bool:
        """The verdict on the step before, if it is still to come; its gradients are then done
        with."""
        if not self.update.pending:
            return False
        again = self.update.validate()
        self._clear_gradients()
        return again

    def rewind(self) -> None:
        """Before the ops since the step's begin are run again."""
        assert self._rewind is not None
        assert self._refill is not None
        self._rewind.back()
        self._refill()

    def _rescale(self, scale: float) -> None:
        self.seed.fill_(scale / self._microbatches)

    def _clear_gradients(self) -> None:
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        self._shared.begin()


def _once(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    return [*{id(p): p for p in parameters}.values()]


def _first_stepped(program: Program, rank: int) -> int | None:
    return next((i.stage for i in program.instructions[rank] if isinstance(i, ir.Step)), None)
