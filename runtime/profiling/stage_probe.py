"""One rank's stages, run and timed as the executor runs them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from pipeloom.ir.model.ops import OpKind

from ..executor.offload import Host, OffloadedActivations
from ..executor.remat_ops import calls
from ..executor.stage_runner import Cell, Run, StageRunner
from ..executor.weight_grad_deferral import WeightQueue
from ..measure.activation_ledger import Held, Ledger
from ..measure.op_timer import make_clock
from ..pipeline.model_source import ModelSource, checked_batch, checked_stages, skips_of
from ..pipeline.shape_inference import ShapeInference
from ..stages.store import ResidentStages, given_modules, made
from ..stages.tie_detection import Group, find_ties, tied_stages
from ..tensors.skip_connections import Skips
from ..tensors.stage_interface import Spec, StageInterface
from ..transport import Transport

KINDS = (OpKind.F, OpKind.B, OpKind.W)
MILLISECONDS = 1e3


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of one stage.

    ``m_b``: the most that one microbatch holds between F's start and B's end; ``m_w``: what it
    holds from then until W; ``activation``: what the stage sends on (None: there is one stage);
    ``m_r``: what one that is recomputed holds until R; ``m_o``: what one that is offloaded holds
    while ``offload`` bytes of it are out. None: not asked for.
    """

    m_b: int
    m_w: int
    activation: int | None
    weight: int
    grad: int
    optimizer: int
    m_r: int | None = None
    m_o: int | None = None
    offload: int | None = None


class StageProbe:
    """The stages of one rank; ``owners`` names the rank of every stage.

    In a round, ``in_flight`` microbatches are run forward, then backward and weights of each:
    caches and allocator are used as in a pipeline, and each round gives that many samples of F,
    B and W. With ``fused`` they are run once more for as many of BW, with ``recompute`` once more,
    recomputed, for as many of R; with ``offload`` what goes to the host is counted.
    """

    def __init__(
        self,
        source: ModelSource,
        owners: Sequence[int],
        transport: Transport,
        *,
        in_flight: int,
        dtype: torch.dtype | None,
        device: torch.device,
        fused: bool = False,
        recompute: bool = False,
        offload: bool = False,
        tied: Sequence[Group] = (),
    ) -> None:
        self._offload = offload
        more = {OpKind.BW: fused, OpKind.R: recompute}
        self.kinds = (*KINDS, *(kind for kind, asked in more.items() if asked))
        self._source, self._owners, self._transport = source, owners, transport
        self._dtype, self._device = dtype, device
        self._generator = torch.Generator(device)
        self.stages = [s for s, owner in enumerate(owners) if owner == transport.rank]
        build = checked_stages(source, len(owners))
        self._modules = {s: made(build[s], s).to(device=device, dtype=dtype) for s in self.stages}
        given = given_modules(build, self.stages, len(owners)) | self._modules
        # the functions are still there, and with them a whole model that they may take parts of
        ties = find_ties(tied, len(owners), given, self._modules, transport.gather)
        self.tied = tied_stages(ties)
        self._memory = Ledger()
        self._cells = [Cell(WeightQueue(self._memory)) for _ in range(in_flight)]
        self._received: dict[Cell, list[Held]] = {cell: [] for cell in self._cells}
        self._inputs, self._targets = self._batch(0)
        store = ResidentStages(self._modules)
        self._skips = Skips(skips_of(source, len(owners)), len(owners))
        self._interfaces = self._exchanged(store, owners)
        self._runners = {s: self._runner(s, module) for s, module in self._modules.items()}
        self._clock = make_clock(2 * len(self.kinds) * in_flight * len(self.stages), device)
        self._ran: list[tuple[int, OpKind]] = []

    def times(self, rounds: int) -> dict[tuple[int, OpKind], list[float]]:
        """Milliseconds by stage and kind, from ``rounds`` rounds that all ranks begin together."""
        samples: dict[tuple[int, OpKind], list[float]] = {
            (s, kind): [] for s in self.stages for kind in self.kinds
        }
        for step in range(rounds):
            self._inputs, self._targets = self._batch(step)
            self._transport.barrier()
            self._begin()
            for stage in self.stages:
                self._round(stage)
                if OpKind.BW in self.kinds:
                    self._fused(stage)
                if OpKind.R in self.kinds:
                    self._recomputed(stage)
            marks = self._clock.seconds()
            for i, op in enumerate(self._ran):
                samples[op].append((marks[2 * i + 1] - marks[2 * i]) * MILLISECONDS)
        return samples

    def pair_times(self, rounds: int) -> dict[int, list[float]]:
        """Milliseconds by stage of an F and the BW of the microbatch before it, as the executor
        runs a pair.

        It takes two microbatches in flight to have one.
        """
        samples: dict[int, list[float]] = {stage: [] for stage in self.stages}
        for step in range(rounds):
            self._inputs, self._targets = self._batch(step)
            self._transport.barrier()
            self._begin()
            with self._unsplit():
                for stage in self.stages:
                    self._pairs(stage)
            marks = self._clock.seconds()
            for i, (stage, _) in enumerate(self._ran):
                samples[stage].append((marks[2 * i + 1] - marks[2 * i]) * MILLISECONDS)
        return samples

    @contextmanager
    def _unsplit(self) -> Iterator[None]:
        """Within: no weight gradients are put off, B is BW."""
        queues = [cell.queue for cell in self._cells]
        for cell in self._cells:
            cell.queue = None
        try:
            yield
        finally:
            for cell, queue in zip(self._cells, queues, strict=True):
                cell.queue = queue

    def _pairs(self, stage: int) -> None:
        runner = self._runners[stage]
        self._prepared(stage, 0)
        self._untimed(stage, OpKind.F, self._cells[0])
        for j, (before, cell) in enumerate(pairwise(self._cells), start=1):
            self._prepared(stage, j)
            self._receive_gradient(stage, before)
            forward, backward = calls(runner, OpKind.F, cell), calls(runner, OpKind.BW, before)
            self._clock.timed(partial(_both, forward, cell, backward, before), 2 * len(self._ran))()
            self._ran.append((stage, OpKind.F))
            cell.output = ()
            self._let_go(before)
        last = self._cells[-1]
        self._receive_gradient(stage, last)
        self._untimed(stage, OpKind.BW, last)
        self._let_go(last)

    def sizes(self, stage: int) -> Sizes:
        """What the ledger counts for one microbatch alone, its received messages included."""
        self._begin()
        before, cell = self._memory.live, self._cells[0]
        self._forward(stage, 0)
        self._backward(stage, cell)
        m_b, m_w = self._memory.peak - before, self._memory.live - before
        self._weight(stage, cell)
        m_r = self._kept(stage, cell) if OpKind.R in self.kinds else None
        m_o, offloaded = self._out(stage, cell) if self._offload else (None, None)
        parameters = list(self._modules[stage].parameters())
        trained = [p for p in parameters if p.requires_grad]
        return Sizes(
            m_b=m_b,
            m_w=m_w,
            activation=self._sent(stage),
            weight=sum(p.nbytes for p in parameters),
            grad=sum(p.nbytes for p in trained),
            optimizer=self._optimizer_state(trained),
            m_r=m_r,
            m_o=m_o,
            offload=offloaded,
        )

    def _out(self, stage: int, cell: Cell) -> tuple[int, int]:
        """Bytes held between O and L, with the received gradient as in :meth:`_kept`, and those
        that are out."""
        before = self._memory.live
        cell.offloaded = offloaded = OffloadedActivations(Host(self._device), self._memory)
        self._prepared(stage, 0)
        self._untimed(stage, OpKind.F, cell)
        self._untimed(stage, OpKind.O, cell)
        self._receive_gradient(stage, cell)
        held, moved = self._memory.live - before, offloaded.moved
        for kind in (OpKind.L, OpKind.B, OpKind.W):
            self._untimed(stage, kind, cell)
        cell.offloaded = None
        self._let_go(cell)
        return held, moved

    def _kept(self, stage: int, cell: Cell) -> int:
        """Bytes held right before R, the gradient that the microbatch receives for its B among
        them."""
        before = self._memory.live
        cell.recomputed = True
        self._prepared(stage, 0)
        self._untimed(stage, OpKind.F, cell)
        self._receive_gradient(stage, cell)
        kept = self._memory.live - before
        for kind in (OpKind.R, OpKind.B, OpKind.W):
            self._untimed(stage, kind, cell)
        self._let_go(cell)
        return kept

    def _sent(self, stage: int) -> int | None:
        """The last stage sends nothing: it counts what it receives, as if it were cut further."""
        if not self._interfaces:
            return None
        return self._interfaces[min(stage, len(self._interfaces) - 1)].forward.nbytes

    def _optimizer_state(self, parameters: Sequence[nn.Parameter]) -> int:
        """What one step of the optimizer leaves behind."""
        if not parameters:
            return 0
        optimizer = self._source.optimizer(parameters)
        optimizer.step()
        values = (value for state in optimizer.state.values() for value in state.values())
        return sum(value.nbytes for value in values if isinstance(value, Tensor))

    def _runner(self, stage: int, module: nn.Module) -> StageRunner:
        runner = StageRunner(
            stage,
            module,
            memory=self._memory,
            last=stage == len(self._interfaces),
            loss=self._source.loss,
            seed=torch.tensor(1.0 / len(self._cells), dtype=torch.float64, device=self._device),
            skips=self._skips if self._skips.passes(stage) else None,
        )
        runner.keep_outputs = False
        return runner

    def _exchanged(self, store: ResidentStages, owners: Sequence[int]) -> list[StageInterface]:
        """What each stage but the last hands on, of the first microbatch."""
        first = Cell(None)
        first.inputs = (self._inputs[0],)
        cells = {(stage, 0): first if stage == 0 else Cell(None) for stage in self.stages}
        placed = np.array(owners, dtype=np.int64)[:, np.newaxis]
        shapes = ShapeInference(store, placed, self._skips, self._transport, self._device)
        return [interfaces[0] for interfaces in shapes.interfaces(cells)]

    def _batch(self, step: int) -> tuple[list[Tensor], list[Tensor]]:
        inputs, targets = checked_batch(self._source, step, len(self._cells))
        return [self._placed(x) for x in inputs], [self._placed(y) for y in targets]

    def _placed(self, tensor: Tensor) -> Tensor:
        # a copy: a view would make one microbatch count the whole batch that it was cut from
        return tensor.to(
            self._device, self._dtype if tensor.is_floating_point() else None, copy=True
        )

    def _begin(self) -> None:
        self._memory.start(self._modules.values())
        self._ran.clear()
        self._clock.start()

    def _round(self, stage: int) -> None:
        for j in range(len(self._cells)):
            self._forward(stage, j)
        for cell in self._cells:
            self._backward(stage, cell)
            self._weight(stage, cell)

    def _fused(self, stage: int) -> None:
        """The microbatches once more, with BW's; these alone are timed."""
        with self._unsplit():
            for j, cell in enumerate(self._cells):
                self._prepared(stage, j)
                self._untimed(stage, OpKind.F, cell)
                cell.output = ()
            for cell in self._cells:
                self._receive_gradient(stage, cell)
                self._timed(stage, OpKind.BW, cell)
                self._let_go(cell)

    def _recomputed(self, stage: int) -> None:
        """F's that keep their input alone, then R, B and W of each; R alone is timed."""
        for j, cell in enumerate(self._cells):
            cell.recomputed = True
            self._prepared(stage, j)
            self._untimed(stage, OpKind.F, cell)
        for cell in self._cells:
            self._receive_gradient(stage, cell)
            self._timed(stage, OpKind.R, cell)
            for kind in (OpKind.B, OpKind.W):
                self._untimed(stage, kind, cell)
            self._let_go(cell)

    def _forward(self, stage: int, microbatch: int) -> None:
        cell = self._cells[microbatch]
        self._prepared(stage, microbatch)
        self._timed(stage, OpKind.F, cell)
        cell.output = ()

    def _prepared(self, stage: int, microbatch: int) -> None:
        """What F needs."""
        cell = self._cells[microbatch]
        cell.target = self._targets[microbatch]
        cell.interface = self._interfaces[stage] if stage < len(self._interfaces) else None
        cell.inputs = (self._inputs[microbatch],)
        if stage > 0:
            before = self._interfaces[stage - 1]
            received = [self._receive(cell, spec) for spec in before.specs]
            pairs = zip(received, before.needs_grad, strict=True)
            cell.inputs = tuple(x.requires_grad_(needs_grad) for x, needs_grad in pairs)

    def _backward(self, stage: int, cell: Cell) -> None:
        self._receive_gradient(stage, cell)
        self._timed(stage, OpKind.B, cell)
        cell.dx = ()

    def _receive_gradient(self, stage: int, cell: Cell) -> None:
        if cell.interface is not None:
            pairs = zip(cell.interface.specs, cell.interface.needs_grad, strict=True)
            cell.dy = tuple(self._receive(cell, spec) for spec, needs_grad in pairs if needs_grad)

    def _weight(self, stage: int, cell: Cell) -> None:
        self._timed(stage, OpKind.W, cell)
        self._let_go(cell)

    def _let_go(self, cell: Cell) -> None:
        """A program frees what a microbatch received after its W."""
        cell.recomputed, cell.output, cell.dx = False, (), ()
        for held in self._received[cell]:
            self._memory.release(held)
        self._received[cell].clear()

    def _receive(self, cell: Cell, spec: Spec) -> Tensor:
        message = torch.zeros(spec.shape, dtype=spec.dtype, device=self._device)
        if spec.dtype.is_floating_point:  # not by the generator of all, which models may draw from
            message.normal_(generator=self._generator)
        self._received[cell].append(self._memory.hold(message))
        return message

    def _timed(self, stage: int, kind: OpKind, cell: Cell) -> None:
        run = calls(self._runners[stage], kind, cell)
        self._clock.timed(partial(run, cell), 2 * len(self._ran))()
        self._ran.append((stage, kind))

    def _untimed(self, stage: int, kind: OpKind, cell: Cell) -> None:
        calls(self._runners[stage], kind, cell)(cell)


def _both(forward: Run, cell: Cell, backward: Run, before: Cell) -> None:
    forward(cell)
    backward(before)
