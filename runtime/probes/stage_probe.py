"""Measures one stage: times of its ops, and bytes that a microbatch holds.

The microbatches in flight run once in each variant, as in a pipeline: first all forwards, then the
rest of each microbatch, with random inputs and output gradients. For two in flight::

    split        F0 F1   B0 W0     B1 W1
    fused        F0 F1   BW0       BW1
    recomputed   F0 F1   R0 B0 W0  R1 B1 W1
    offloaded    F0 O0 F1 O1   L0 B0 W0  L1 B1 W1
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from pipeloom.ir.model.ops import OpKind

from ..executor.messages import give_input
from ..executor.remat_ops import calls
from ..executor.stage_runner import Cell, StageRunner
from ..measure.memory import Held
from ..measure.op_timer import Call, make_clock
from ..tensors.packed_message import PackedMessage
from ..tensors.stage_interface import StageInterface
from ..tensors.trees import mapped

BACKWARD = (OpKind.B, OpKind.BW)
SPLIT, RECOMPUTED, OFFLOADED = "split", "recomputed", "offloaded"
MILLISECONDS = 1e3


@dataclass(frozen=True, slots=True)
class Asked:
    """The requested measurements of stages besides F, B and W, and the number of rounds.

    ``in_flight``: microbatches per round. ``fused``: BW. ``recompute``: R, and the bytes held until
    then. ``offload``: bytes that are offloaded and that stay. ``repeats``: rounds that count, after
    ``warmup`` rounds that do not.
    """

    in_flight: int
    fused: bool = True
    recompute: bool = False
    offload: bool = False
    repeats: int = 10
    warmup: int = 2

    @property
    def ways(self) -> dict[str, tuple[OpKind, ...]]:
        """The variants: the ops of a microbatch, in order."""
        f, b, w = OpKind.F, OpKind.B, OpKind.W
        found: dict[str, tuple[OpKind, ...]] = {SPLIT: (f, b, w)}
        if self.fused:
            found["fused"] = (f, OpKind.BW)
        if self.recompute:
            found[RECOMPUTED] = (f, OpKind.R, b, w)
        if self.offload:
            found[OFFLOADED] = (f, OpKind.O, OpKind.L, b, w)
        return found


class Reading(NamedTuple):
    """Bytes of activations on the rank: current, peak since the last reading, and offloaded."""

    live: int
    peak: int
    out: int


class StageProbe:
    """Measures the stage of ``runner``, by calls that each round runs in the same order.

    ``sources``: for each microbatch in flight, a cell of a step with its arguments. ``cells``: of
    the same microbatches, in each variant. ``interfaces[s][j]`` describes a stage's output.
    ``times``: milliseconds by kind of op, in rounds that count; a kind of several variants is timed
    in the first one.
    """

    def __init__(
        self,
        runner: StageRunner,
        asked: Asked,
        sources: Sequence[Cell],
        cells: Sequence[Sequence[Cell]],
        *,
        interfaces: Sequence[Sequence[StageInterface]],
        device: torch.device,
    ) -> None:
        self.runner, self._memory = runner, runner.memory
        self._out = [c.offloaded for row in cells for c in row if c.offloaded is not None]
        self._reads = False  # whether this round measures bytes
        self._readings: dict[str, list[list[Reading]]] = {}  # by variant and microbatch
        self.times: dict[OpKind, list[float]] = {}
        ops = len(sources) * sum(map(len, asked.ways.values()))
        self._clock = make_clock(2 * ops, device)
        self._timed: list[list[float] | None] = []  # where each op's time goes
        self._calls: list[Call] = []
        # a separate generator, as models may draw from the default one
        generator = torch.Generator(device)
        given = [_Inputs(runner, j, x, interfaces, generator) for j, x in enumerate(sources)]
        for (name, way), row in zip(asked.ways.items(), cells, strict=True):
            readings: list[list[Reading]] = [[] for _ in row]
            self._readings[name] = readings
            self._variant(way, [*zip(given, row, readings, strict=True)])

    def _variant(
        self, way: Sequence[OpKind], microbatches: Sequence[tuple[_Inputs, Cell, list[Reading]]]
    ) -> None:
        """Adds the calls of one variant, with readings around what changes the held memory."""
        first = 2 if OpKind.O in way else 1
        back = 1 + max(i for i, kind in enumerate(way) if kind in BACKWARD)
        new = {kind for kind in way if not kind.copies} - self.times.keys()
        self.times |= {kind: [] for kind in way if kind in new}
        for given, cell, found in microbatches:
            given.inputs(cell)
            self.runner.prepare(cell, cell.inputs)
            given.free()
            read = partial(self._read, found)
            self._calls += [read, partial(given.inputs, cell)]
            self._add(way[:first], new, cell)
            self._calls += [partial(setattr, cell, "output", ()), read]
        for given, cell, found in microbatches:
            read = partial(self._read, found)
            self._calls += [read, partial(given.gradients, cell), read]
            self._add(way[first:back], new, cell)
            self._calls += [read, partial(setattr, cell, "dx", ())]
            self._add(way[back:], new, cell)
            self._calls.append(given.free)

    def _add(self, kinds: Sequence[OpKind], new: Collection[OpKind], cell: Cell) -> None:
        for kind in kinds:
            run: Call = partial(calls(self.runner, kind, cell), cell)
            self._calls.append(self._clock.timed(run, 2 * len(self._timed)))
            self._timed.append(self.times[kind] if kind in new else None)

    def _read(self, found: list[Reading]) -> None:
        if self._reads:
            memory, out = self._memory, sum(each.moved for each in self._out)
            found.append(Reading(memory.live, memory.peak, out))
            memory.peak = memory.live

    def run(self, *, counts: bool = False) -> None:
        """Runs one round; with ``counts``, keeps its times."""
        self._memory.start([self.runner.module])
        self._clock.start()
        for call in self._calls:
            call()
        marks = self._clock.seconds() if counts else ()
        for i, times in enumerate(self._timed if counts else ()):
            if times is not None:
                times.append((marks[2 * i + 1] - marks[2 * i]) * MILLISECONDS)

    def sizes(self) -> dict[str, int]:
        """Runs one more round; returns the maximum bytes of any microbatch.

        They are by keys of a stage's profile.
        """
        self._reads = True
        self.run()
        held = {
            name: _Held(*map(max, zip(*(_held(*row) for row in rows), strict=True)))
            for name, rows in self._readings.items()
        }
        found = {"m_b": held[SPLIT].most, "m_w": held[SPLIT].later}
        if (again := held.get(RECOMPUTED)) is not None:
            found["m_r"] = min(again.waiting, found["m_b"])
        if (moved := held.get(OFFLOADED)) is not None:
            found |= {"m_o": min(moved.waiting, found["m_b"]), "offload_bytes": moved.out}
        return found


class _Inputs:
    """The inputs of microbatch ``j``: arguments of a step's cell, and random messages."""

    def __init__(
        self,
        runner: StageRunner,
        j: int,
        source: Cell,
        interfaces: Sequence[Sequence[StageInterface]],
        generator: torch.Generator,
    ) -> None:
        stage, self._memory, self._source = runner.stage, runner.memory, source
        self._held: Held = ()
        self._x: list[tuple[Tensor, bool]] | None = None
        self._dy: tuple[Tensor, ...] = ()
        if stage > 0:
            before = interfaces[stage - 1][j]
            parts = _received(before.forward, generator)
            self._x = [*zip(parts, before.needs_grad, strict=True)]
        if stage < len(interfaces):
            self._dy = _received(interfaces[stage][j].backward, generator)

    def inputs(self, cell: Cell) -> None:
        """Sets the arguments of F and of the loss."""
        source = self._source
        cell.options, cell.target = mapped(_own, source.options), mapped(_own, source.target)
        if self._x is None:
            cell.inputs = tuple(mapped(_own, x) for x in source.inputs)
        else:
            self._held += self._memory.hold(*(x for x, _ in self._x))
            give_input(cell, self._x)

    def gradients(self, cell: Cell) -> None:
        """Sets the gradients from which B starts, unless they are those of the loss."""
        if self._dy:
            self._held += self._memory.hold(*self._dy)
            cell.dy = self._dy

    def free(self) -> None:
        """Ends counting the messages."""
        self._memory.release(self._held)
        self._held = ()


def _received(message: PackedMessage, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Returns the tensors of a message of random numbers."""
    buffer = torch.empty(message.nbytes, dtype=torch.uint8, device=generator.device)
    parts = message.tensors(message.place(buffer))
    for part in parts:
        if part.dtype.is_floating_point:
            part.normal_(generator=generator)
        else:
            part.zero_()
    return parts


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
