"""Measures one stage by the executor: times of its ops, and bytes that a microbatch holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pipeloom.ir.model import program as ir
from pipeloom.ir.model.ops import OpKind

from ..executor.executor import Executor
from ..executor.stage_runner import Cell, StageRunner
from ..measure.op_timer import Call
from ..rank.context import RankContext
from ..tensors.stage_interface import StageInterface
from ..tensors.trees import mapped
from ..transport.single import SingleTransport
from .measurement_program import OFFLOADED, RECOMPUTED, SPLIT, Asked

MILLISECONDS = 1e3
READINGS = 5  # per microbatch: two around F, three around B
DONE: Any = SimpleNamespace(wait=int)


class MadeUpMessages(SingleTransport):
    """A transport for measurement: receives random numbers, discards what is sent.

    ``messages``: the message from each source. ``interfaces``: the outputs of stages.
    """

    def __init__(
        self,
        rank: int,
        messages: Sequence[ir.Tensor],
        interfaces: Sequence[Sequence[StageInterface]],
        device: torch.device,
    ) -> None:
        self.rank = rank
        self._messages = [
            interfaces[x.stage - 1][x.index].forward
            if x.kind is ir.TensorKind.X
            else interfaces[x.stage][x.index].backward
            for x in messages
        ]
        # a separate generator, as models may draw from the default one
        self._generator = torch.Generator(device)

    def recv(self, buffer: Tensor, peer: int) -> Any:
        for part in self._messages[peer].tensors(buffer):
            if part.dtype.is_floating_point:
                part.normal_(generator=self._generator)
            else:
                part.zero_()
        return DONE

    def send(self, tensor: Tensor, peer: int) -> Any:
        return DONE


class Reading(NamedTuple):
    """Bytes of activations on the rank: current, peak since the last reading, and offloaded."""

    live: int
    peak: int
    out: int


class StageProbe:
    """Measures the stage of ``runner`` by the measurement program of ``context``.

    ``cells``: of the program's microbatches, by stage and microbatch. ``sources``: for each, a cell
    of a step with its arguments. The object replaces StepEnd in its executor: in the round that
    measures bytes, it reads the ledger at each ``step`` instruction. ``times``: milliseconds by
    kind of op, in rounds that count.
    """

    def __init__(
        self,
        context: RankContext,
        runner: StageRunner,
        cells: Mapping[tuple[int, int], Cell],
        sources: Sequence[Cell],
        asked: Asked,
        *,
        interfaces: Sequence[Sequence[StageInterface]],
    ) -> None:
        self.runner, self._memory, self._asked = runner, context.memory, asked
        self._cells = [*zip(cells.values(), sources, strict=True)]
        self._out = [cell.offloaded for cell in cells.values() if cell.offloaded is not None]
        self._readings: list[Reading] | None = None  # None: while ops are timed
        self.times: dict[OpKind, list[float]] = {kind: [] for kind in asked.timed}
        reads: Any = self
        self._executor = Executor(context, reads, cells, {runner.stage: runner}, interfaces)

    def step(self, stage: int) -> Call:
        """Returns the call of a ``step``."""
        return self._read

    def _read(self) -> None:
        if self._readings is not None:
            memory, out = self._memory, sum(each.moved for each in self._out)
            self._readings.append(Reading(memory.live, memory.peak, out))
            memory.peak = memory.live

    def run(self, *, counts: bool = False) -> None:
        """Runs one round; with ``counts``, keeps its times."""
        for cell, given in self._cells:
            cell.options, cell.target = mapped(_own, given.options), mapped(_own, given.target)
            if self.runner.stage == 0:
                cell.inputs = tuple(mapped(_own, x) for x in given.inputs)
        self._memory.start([self.runner.module])
        self._executor.run()
        if counts:
            self._count()

    def _count(self) -> None:
        marks = self._executor.clock.seconds()
        for i, op in enumerate(self._executor.ops):
            way = op.microbatch // self._asked.in_flight
            if self._asked.timed.get(op.kind) == way:
                self.times[op.kind].append((marks[2 * i + 1] - marks[2 * i]) * MILLISECONDS)

    def sizes(self) -> dict[str, int]:
        """Runs one more round; returns the maximum bytes of any microbatch.

        They are by keys of a stage's profile.
        """
        self._readings = []
        self.run()
        count = self._asked.in_flight * READINGS
        held = {
            way: self._held(self._readings[number * count : (number + 1) * count])
            for number, way in enumerate(self._asked.ways)
        }
        found = {"m_b": held[SPLIT].most, "m_w": held[SPLIT].later}
        if (again := held.get(RECOMPUTED)) is not None:
            found["m_r"] = min(again.waiting, found["m_b"])
        if (moved := held.get(OFFLOADED)) is not None:
            found |= {"m_o": min(moved.waiting, found["m_b"]), "offload_bytes": moved.out}
        return found

    def _held(self, own: Sequence[Reading]) -> _Held:
        """Returns the maximum bytes of any microbatch of one variant, from its readings."""
        count = self._asked.in_flight
        each = [
            _held(*own[2 * j : 2 * j + 2], *own[2 * count + 3 * j : 2 * count + 3 * j + 3])
            for j in range(count)
        ]
        return _Held(*map(max, zip(*each, strict=True)))


class _Held(NamedTuple):
    """Bytes of one microbatch.

    ``most``: peak until the end of B. ``waiting``: when B, or R or L before it, can start.
    ``later``: after B. ``out``: offloaded in between.
    """

    most: int
    waiting: int
    later: int
    out: int


def _held(before: Reading, after: Reading, first: Reading, ready: Reading, back: Reading) -> _Held:
    """Computes the bytes from readings around F, around the receive of dy, and after B."""
    own = after.live - before.live
    others = first.live - own
    return _Held(
        max(after.peak - before.live, max(ready.peak, back.peak) - others),
        ready.live - others,
        back.live - others,
        after.out - before.out,
    )


def _own(tensor: Tensor) -> Tensor:
    # a view would keep the whole batch in memory
    return tensor.detach().clone()
