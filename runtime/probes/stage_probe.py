"""The stages of one rank, run and timed as the executor runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor, nn

from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.model.weight_coverage import WeightCoverage

from ..executor.offload import Host, OffloadedActivations
from ..executor.remat_ops import calls
from ..executor.stage_runner import Cell, Run, StageRunner
from ..executor.weight_grad_deferral import WeightQueue
from ..measure.activation_ledger import Ledger
from ..measure.gradient_watch import GradientWatch
from ..measure.memory import Held
from ..measure.op_timer import Call, make_clock
from ..rank.model_names import model_name
from ..rank.options import ModelNames
from ..tensors.packed_message import Spec
from ..tensors.stage_interface import StageInterface

KINDS = (OpKind.F, OpKind.B, OpKind.W)
MILLISECONDS = 1e3


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of activations of one stage.

    ``m_b``: the most that one microbatch holds between F's start and B's end; ``m_w``: what it
    holds from then until W; ``activation``: what the stage sends on (None: there is one stage);
    ``m_r``: what one that is recomputed holds until R; ``m_o``: what one that is offloaded holds
    while ``offload`` bytes of it are out. None: not asked for.
    """

    m_b: int
    m_w: int
    activation: int | None
    m_r: int | None = None
    m_o: int | None = None
    offload: int | None = None


class Feed(Protocol):
    """The microbatches that a rank's stages are given, as in a step."""

    def renew(self, step: int) -> None:
        """Before each round: the batch of a step."""
        ...

    def fill(self, stage: int, microbatch: int, cell: Cell) -> None:
        """Gives F what comes from no other stage: the first one's inputs, options, the last one's
        target; in tensors of the microbatch's own."""
        ...


@dataclass(frozen=True, slots=True)
class Asked:
    """The list of what a probe measures beside F, B and W.

    ``in_flight``: microbatches of a round; ``fused``: BW; ``recompute``: R, and what is held until
    then; ``offload``: what goes to the host, and what stays.
    """

    in_flight: int
    fused: bool = False
    recompute: bool = False
    offload: bool = False

    @property
    def kinds(self) -> tuple[OpKind, ...]:
        """The kinds of op that are timed."""
        more = {OpKind.BW: self.fused, OpKind.R: self.recompute}
        return (*KINDS, *(kind for kind, asked in more.items() if asked))


class StageProbe:
    """The stages of one rank, whose ``runners`` count in ``memory``.

    ``interfaces[s][j]``: what stage s hands on of microbatch j, for all stages but the last;
    ``together`` begins a round on all ranks at once; ``names``: parameters' names in the whole
    model. ``coverage``: what W computed of each stage whose sizes were asked for; ``eager``: why
    stages that were to be graphs ran as they are.

    In a round, so many microbatches as are in flight are run forward, then backward and weights of
    each: caches and allocator are used as in a pipeline, and each round gives that many samples of
    F, B and W. Once more each they are run for samples of BW and of R, where these are asked for.
    """

    def __init__(
        self,
        runners: Mapping[int, StageRunner],
        interfaces: Sequence[Sequence[StageInterface]],
        feed: Feed,
        *,
        memory: Ledger,
        device: torch.device,
        asked: Asked,
        together: Callable[[], None],
        names: ModelNames | None = None,
    ) -> None:
        self.stages, self.asked, self._runners = sorted(runners), asked, runners
        self._interfaces, self._feed, self._memory = interfaces, feed, memory
        self._device, self._together, self._names = device, together, names
        self.coverage: dict[int, WeightCoverage] = {}
        self.eager: dict[int, str] = {}
        self._modules: list[nn.Module] = [runner.module for runner in runners.values()]
        self._generator = torch.Generator(device)
        self._cells = [Cell(WeightQueue(memory)) for _ in range(asked.in_flight)]
        # with the messages themselves: until then nothing else may be where they are
        self._received: dict[Cell, list[tuple[Held, Tensor]]] = {cell: [] for cell in self._cells}
        marks = 2 * len(asked.kinds) * asked.in_flight * len(self.stages)
        self._clock = make_clock(marks, device)
        self._ran: list[tuple[int, OpKind]] = []

    def times(self, rounds: int) -> dict[tuple[int, OpKind], list[float]]:
        """Milliseconds by stage and kind, from ``rounds`` rounds that all ranks begin together."""
        samples: dict[tuple[int, OpKind], list[float]] = {
            (s, kind): [] for s in self.stages for kind in self.asked.kinds
        }
        for step in range(rounds):
            self._begin_round(step)
            for stage in self.stages:
                self._round(stage, (OpKind.B, OpKind.W), timed=KINDS)
                if self.asked.fused:
                    with self._unsplit():
                        self._round(stage, (OpKind.BW,), timed=(OpKind.BW,))
                if self.asked.recompute:
                    self._recomputed(stage)
            for stage, kind, took in self._took():
                samples[stage, kind].append(took)
        return samples

    def pair_times(self, rounds: int) -> dict[int, list[float]]:
        """Milliseconds by stage of an F and the BW of the microbatch before it, as the executor
        runs a pair.

        It takes two microbatches in flight to have one.
        """
        samples: dict[int, list[float]] = {stage: [] for stage in self.stages}
        for step in range(rounds):
            self._begin_round(step)
            with self._unsplit():
                for stage in self.stages:
                    self._pairs(stage)
            for stage, _, took in self._took():
                samples[stage].append(took)
        return samples

    def _took(self) -> Iterator[tuple[int, OpKind, float]]:
        """Stage, kind and milliseconds of each op that was timed in the round."""
        marks = self._clock.seconds()
        for i, (stage, kind) in enumerate(self._ran):
            yield stage, kind, (marks[2 * i + 1] - marks[2 * i]) * MILLISECONDS

    @contextmanager
    def _unsplit(self) -> Iterator[None]:
        """A context in which no weight gradients are put off, so B is BW."""
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
        self._forward(stage, 0)
        for j, (before, cell) in enumerate(pairwise(self._cells), start=1):
            self._prepared(stage, j)
            self._receive_gradient(stage, before)
            forward, backward = calls(runner, OpKind.F, cell), calls(runner, OpKind.BW, before)
            self._time(stage, OpKind.F, partial(_both, forward, cell, backward, before))
            cell.output = ()
            self._let_go(before)
        last = self._cells[-1]
        self._receive_gradient(stage, last)
        self._run(stage, last, (OpKind.BW,))
        self._let_go(last)

    def sizes(self, stage: int) -> Sizes:
        """Bytes that the ledger counts for one microbatch alone, received messages included: the
        most of those in flight."""
        self._feed.renew(0)
        self._begin()
        self._runners[stage].watched = GradientWatch()
        each = [self._sizes(stage, j) for j in range(len(self._cells))]
        found = self._runners[stage].covered(partial(model_name, self._names))
        if found is not None:
            self.coverage[stage] = found
        if (refusal := getattr(self._runners[stage], "refusal", None)) is not None:
            self.eager[stage] = refusal
        return Sizes(
            m_b=max(one.m_b for one in each),
            m_w=max(one.m_w for one in each),
            activation=self._sent(stage),
            m_r=_most([one.m_r for one in each]),
            m_o=_most([one.m_o for one in each]),
            offload=_most([one.offload for one in each]),
        )

    def _sizes(self, stage: int, microbatch: int) -> Sizes:
        self._memory.start(self._modules)
        before, cell = self._memory.live, self._cells[microbatch]
        self._forward(stage, microbatch)
        self._receive_gradient(stage, cell)
        self._run(stage, cell, (OpKind.B,))
        m_b, m_w = self._memory.peak - before, self._memory.live - before
        self._run(stage, cell, (OpKind.W,))
        self._let_go(cell)
        m_r = self._kept(stage, microbatch) if self.asked.recompute else None
        m_o, out = self._out(stage, microbatch) if self.asked.offload else (None, None)
        return Sizes(m_b, m_w, None, m_r, m_o, out)

    def _out(self, stage: int, microbatch: int) -> tuple[int, int]:
        """Bytes held between O and L, and bytes that are out."""
        before, cell = self._memory.live, self._cells[microbatch]
        cell.offloaded = offloaded = OffloadedActivations(Host(self._device), self._memory)
        self._forward(stage, microbatch)
        self._run(stage, cell, (OpKind.O,))
        moved = offloaded.moved
        held = self._held(stage, cell, before, (OpKind.L, OpKind.B, OpKind.W))
        cell.offloaded = None
        return held, moved

    def _kept(self, stage: int, microbatch: int) -> int:
        """Bytes held right before R."""
        before, cell = self._memory.live, self._cells[microbatch]
        cell.recomputed = True
        self._forward(stage, microbatch)
        return self._held(stage, cell, before, (OpKind.R, OpKind.B, OpKind.W))

    def _held(self, stage: int, cell: Cell, before: int, rest: Sequence[OpKind]) -> int:
        """Bytes more than ``before``, the gradient that is received for B included, as the ``rest``
        begins."""
        self._receive_gradient(stage, cell)
        held = self._memory.live - before
        self._run(stage, cell, rest)
        self._let_go(cell)
        return held

    def _sent(self, stage: int) -> int | None:
        """The last stage sends nothing: it counts what it receives, as if it were cut further."""
        if not self._interfaces:
            return None
        sent = self._interfaces[min(stage, len(self._interfaces) - 1)]
        return max(interface.forward.nbytes for interface in sent)

    def _begin_round(self, step: int) -> None:
        self._feed.renew(step)
        self._together()
        self._begin()

    def _begin(self) -> None:
        self._memory.start(self._modules)
        self._ran.clear()
        self._clock.start()

    def _round(self, stage: int, after: Sequence[OpKind], *, timed: Sequence[OpKind]) -> None:
        """F's of all microbatches, then the ops ``after`` of each; of these kinds ``timed``."""
        for j in range(len(self._cells)):
            self._forward(stage, j, timed=timed)
        for cell in self._cells:
            self._receive_gradient(stage, cell)
            self._run(stage, cell, after, timed=timed)
            self._let_go(cell)

    def _recomputed(self, stage: int) -> None:
        """A round whose F's keep their input alone; R alone is timed."""
        for cell in self._cells:
            cell.recomputed = True
        self._round(stage, (OpKind.R, OpKind.B, OpKind.W), timed=(OpKind.R,))

    def _forward(self, stage: int, microbatch: int, *, timed: Sequence[OpKind] = ()) -> None:
        self._prepared(stage, microbatch)
        self._run(stage, self._cells[microbatch], (OpKind.F,), timed=timed)

    def _prepared(self, stage: int, microbatch: int) -> None:
        """Gives a cell all that its F needs."""
        cell = self._cells[microbatch]
        self._feed.fill(stage, microbatch, cell)
        cell.interface = self._between(stage, microbatch)
        if stage > 0:
            before = self._between(stage - 1, microbatch)
            assert before is not None
            received = [self._receive(cell, spec) for spec in before.specs]
            pairs = zip(received, before.needs_grad, strict=True)
            cell.inputs = tuple(x.requires_grad_(needs_grad) for x, needs_grad in pairs)
        self._runners[stage].prepare(cell, cell.inputs)

    def _between(self, stage: int, microbatch: int) -> StageInterface | None:
        """The interface that the stage hands on; None of the last one."""
        if stage == len(self._interfaces):
            return None
        return self._interfaces[stage][microbatch]

    def _receive_gradient(self, stage: int, cell: Cell) -> None:
        if cell.interface is not None:
            pairs = zip(cell.interface.specs, cell.interface.needs_grad, strict=True)
            cell.dy = tuple(self._receive(cell, spec) for spec, needs_grad in pairs if needs_grad)

    def _let_go(self, cell: Cell) -> None:
        """A program frees what a microbatch received after its W."""
        cell.recomputed = False
        for held, _ in self._received[cell]:
            self._memory.release(held)
        self._received[cell].clear()

    def _receive(self, cell: Cell, spec: Spec) -> Tensor:
        message = torch.zeros(spec.shape, dtype=spec.dtype, device=self._device)
        if spec.dtype.is_floating_point:  # not by the generator of all, which models may draw from
            message.normal_(generator=self._generator)
        self._received[cell].append((self._memory.hold(message), message))
        return message

    def _run(
        self, stage: int, cell: Cell, kinds: Sequence[OpKind], *, timed: Sequence[OpKind] = ()
    ) -> None:
        """Runs ops of these kinds; what they hand on is let go of."""
        for kind in kinds:
            run = calls(self._runners[stage], kind, cell)
            if kind in timed:
                self._time(stage, kind, partial(run, cell))
            else:
                run(cell)
            cell.output, cell.dx = (), ()

    def _time(self, stage: int, kind: OpKind, run: Call) -> None:
        self._clock.timed(run, 2 * len(self._ran))()
        self._ran.append((stage, kind))


def _most(sizes: Sequence[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return max(known, default=None)


def _both(forward: Run, cell: Cell, backward: Run, before: Cell) -> None:
    forward(cell)
    backward(before)
