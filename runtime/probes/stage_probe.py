"""Measures one stage: the times of its ops, and the bytes of activations of a microbatch.

In each round, some microbatches run once in each *variant*, which determines their ops: first the
forwards of all of them, as in a pipeline, then the remaining ops of each. Inputs and output
gradients are random. For two microbatches::

    split        F0 F1   B0 W0     B1 W1
    fused        F0 F1   BW0       BW1
    recomputed   F0 F1   R0 B0 W0  R1 B1 W1
    offloaded    F0 O0 F1 O1   L0 B0 W0  L1 B1 W1
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

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
SIZES = {
    "split": ("m_b", "m_w"),
    "fused": (),
    "recomputed": ("m_r",),
    "offloaded": ("m_o", "offload_bytes"),
}
"""For each variant, the keys of a stage in a profile whose bytes it measures."""
MILLISECONDS = 1e3


@dataclass(frozen=True, slots=True)
class Asked:
    """The settings of a measurement: the quantities besides F, B and W, and the number of rounds.

    ``in_flight``: the number of microbatches per round. ``fused``: measure BW. ``recompute``:
    measure R, and the bytes that a microbatch occupies before it. ``offload``: measure the bytes
    that are offloaded and those that stay. ``repeats``: the number of rounds that count, after
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
        """The variants to run: for each, by name, the ops of a microbatch in their order."""
        f, b, w = OpKind.F, OpKind.B, OpKind.W
        found: dict[str, tuple[OpKind, ...]] = {"split": (f, b, w)}
        if self.fused:
            found["fused"] = (f, OpKind.BW)
        if self.recompute:
            found["recomputed"] = (f, OpKind.R, b, w)
        if self.offload:
            found["offloaded"] = (f, OpKind.O, OpKind.L, b, w)
        return found


class StageProbe:
    """Measures the stage that ``runner`` runs.

    ``asked``: what to measure. ``sources``: for each microbatch, the cell that contains its
    arguments in a step. ``cells[v][j]``: the cell in which microbatch j of variant v runs.
    ``interfaces[s][j]``: shapes and dtypes of the output of stage s for microbatch j.

    ``times``: for each kind of op, milliseconds in all rounds that count. If several variants
    contain a kind, only the first of them is timed.
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
        self.times: dict[OpKind, list[float]] = {}
        ops = len(sources) * sum(map(len, asked.ways.values()))
        self._clock = make_clock(2 * ops, device)
        self._timed: list[list[float] | None] = []  # for each op, the list for its time, if any
        self._calls: list[Call] = []
        # a separate generator, as models may draw from the default one
        generator = torch.Generator(device)
        given = [_Inputs(runner, j, x, interfaces, generator) for j, x in enumerate(sources)]
        self._variants = {
            name: (way, [*zip(given, row, strict=True)])
            for (name, way), row in zip(asked.ways.items(), cells, strict=True)
        }
        for way, microbatches in self._variants.values():
            self._add(way, microbatches)

    def _add(self, way: Sequence[OpKind], microbatches: Sequence[tuple[_Inputs, Cell]]) -> None:
        """Adds the calls of one variant to a round.

        ``way``: the ops of each microbatch in this variant. ``microbatches``: for each microbatch,
        its inputs and the cell in which it runs.
        """
        first = _forwards(way)
        new = {kind for kind in way if not kind.copies} - self.times.keys()
        self.times |= {kind: [] for kind in way if kind in new}
        for given, cell in microbatches:
            given.inputs(cell)
            self.runner.prepare(cell, cell.inputs)
            given.free()
            forward = [self._op(kind, new, cell) for kind in way[:first]]
            self._calls += [partial(given.inputs, cell), *forward, partial(_take, cell)]
        for given, cell in microbatches:
            backward = [self._op(kind, new, cell) for kind in way[first:]]
            self._calls += [partial(given.gradients, cell), *backward, partial(_take, cell)]
            self._calls.append(given.free)

    def _op(self, kind: OpKind, new: Collection[OpKind], cell: Cell) -> Call:
        self._timed.append(self.times[kind] if kind in new else None)
        run: Call = partial(calls(self.runner, kind, cell), cell)
        return self._clock.timed(run, 2 * len(self._timed) - 2)

    def run(self, *, counts: bool = False) -> None:
        """Runs one round; ``counts``: whether to add its times to ``times``."""
        self._memory.start([self.runner.module])
        self._clock.start()
        for call in self._calls:
            call()
        marks = self._clock.seconds() if counts else ()
        for i, times in enumerate(self._timed if counts else ()):
            if times is not None:
                times.append((marks[2 * i + 1] - marks[2 * i]) * MILLISECONDS)

    def sizes(self) -> dict[str, int]:
        """Returns the bytes of activations of a microbatch, by the keys of a stage in a profile.

        To measure them, runs each microbatch once more in each variant, one after the other. The
        result is the maximum over microbatches.
        """
        self._memory.start([self.runner.module])
        found: dict[str, int] = {}
        for name, (way, microbatches) in self._variants.items():
            for each in microbatches:
                held = self._held(way, *each)
                found |= {key: max(held[key], found.get(key, 0)) for key in SIZES[name]}
        return found | {
            key: min(found[key], found["m_b"]) for key in ("m_r", "m_o") if key in found
        }

    def _held(self, way: Sequence[OpKind], given: _Inputs, cell: Cell) -> dict[str, int]:
        """Runs one microbatch in the variant ``way``; returns its bytes of activations.

        They are by the keys of a stage in a profile: ``m_b`` is the peak until the end of B,
        ``m_w`` what stays until W, ``m_r`` what stays between F and R, ``m_o`` between O and L.
        """
        memory, runs = self._memory, [calls(self.runner, kind, cell) for kind in way]
        first, back = _forwards(way), 1 + max(i for i, kind in enumerate(way) if kind in BACKWARD)
        before = memory.peak = memory.live
        given.inputs(cell)
        for run in runs[:first]:
            run(cell)
        _take(cell)
        out = 0 if cell.offloaded is None else cell.offloaded.moved
        given.gradients(cell)
        waiting = memory.live - before
        for run in runs[first:back]:
            run(cell)
        most, later = memory.peak - before, memory.live - before
        for run in runs[back:]:
            run(cell)
        _take(cell)
        given.free()
        return {"m_b": most, "m_w": later, "m_r": waiting, "m_o": waiting, "offload_bytes": out}


def _forwards(way: Sequence[OpKind]) -> int:
    """Returns the number of ops of a variant that run before any backward: 1 (F) or 2 (F, O)."""
    return 2 if OpKind.O in way else 1


def _take(cell: Cell) -> None:
    """Drops the results of F and B in the cell, which a step would send."""
    cell.output = cell.dx = ()


class _Inputs:
    """The inputs of microbatch ``j`` on a stage.

    They are the arguments in ``source``, a cell of a step, and random tensors for what the stage
    would receive: outputs of the previous stage, and gradients from the next one.
    """

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
        """Sets the arguments of F and of the loss in ``cell``."""
        source = self._source
        cell.options, cell.target = mapped(_own, source.options), mapped(_own, source.target)
        if self._x is None:
            cell.inputs = tuple(mapped(_own, x) for x in source.inputs)
        else:
            self._held += self._memory.hold(*(x for x, _ in self._x))
            give_input(cell, self._x)

    def gradients(self, cell: Cell) -> None:
        """Sets the gradients of the stage's outputs in ``cell``; does nothing on the last stage."""
        if self._dy:
            self._held += self._memory.hold(*self._dy)
            cell.dy = self._dy

    def free(self) -> None:
        """Stops counting the random tensors as activations."""
        self._memory.release(self._held)
        self._held = ()


def _received(message: PackedMessage, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Returns tensors with the shapes and dtypes of ``message``, filled with random numbers.

    Tensors of integers are filled with zeros.
    """
    buffer = torch.empty(message.nbytes, dtype=torch.uint8, device=generator.device)
    parts = message.tensors(message.place(buffer))
    for part in parts:
        if part.dtype.is_floating_point:
            part.normal_(generator=generator)
        else:
            part.zero_()
    return parts


def _own(tensor: Tensor) -> Tensor:
    # a view would keep the whole batch in memory
    return tensor.detach().clone()
