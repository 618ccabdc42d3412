"""The measurement program of one stage: what its rank runs to time each kind of op.

The microbatches in flight run once in each variant, as in a pipeline: first all forwards, then the
rest of each microbatch, with generated messages. For two in flight::

    split        F0 F1   B0 W0     B1 W1
    fused        F2 F3   BW2       BW3
    recomputed   F4 F5   R4 B4 W4  R5 B5 W5
    offloaded    F6 O6 F7 O7   L6 B6 W6  L7 B7 W7

Before and after ops that change the memory that a microbatch holds, there is a ``step``
instruction. It reads the ledger; no optimizer steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeloom.ir.model import program as ir
from pipeloom.ir.model.ops import Op, OpKind
from pipeloom.ir.model.program import TensorKind

BACKWARD = (OpKind.B, OpKind.BW)
SPLIT, RECOMPUTED, OFFLOADED = "split", "recomputed", "offloaded"
READ, SEND_X, SEND_DY, FREE = "read", "send x", "send dy", "free"


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

    @property
    def timed(self) -> dict[OpKind, int]:
        """The kinds of op that are timed, each with the number of the first variant that has it."""
        found: dict[OpKind, int] = {}
        for number, way in enumerate(self.ways.values()):
            for kind in way:
                if not kind.copies:
                    found.setdefault(kind, number)
        return found

    @property
    def microbatches(self) -> int:
        """The number of microbatches in the program."""
        return self.in_flight * len(self.ways)


class MeasurementProgram:
    """The instructions (``row``) that measure one of ``stages`` stages, and their ``buffers``.

    ``messages``: the received messages, in order; each has a different source.
    """

    def __init__(self, stage: int, stages: int, asked: Asked) -> None:
        count = asked.in_flight
        self._stage, self._count = stage, count
        self._takes = {TensorKind.X: stage > 0, TensorKind.DY: stage < stages - 1}
        self.buffers = [ir.Buffer(TensorKind.X, stage)] * (count if stage > 0 else 0)
        self.buffers += [ir.Buffer(TensorKind.DY, stage)] * self._takes[TensorKind.DY]
        self.row: list[ir.Instruction] = []
        self.messages: list[ir.Tensor] = []
        for number, way in enumerate(asked.ways.values()):
            self._round(way, range(number * count, (number + 1) * count))

    def _round(self, way: Sequence[OpKind], microbatches: Sequence[int]) -> None:
        first = 2 if OpKind.O in way else 1
        back = 1 + max(i for i, kind in enumerate(way) if kind in BACKWARD)
        for j in microbatches:
            self._add(j, READ, TensorKind.X, *way[:first], SEND_X, READ)
        for j in microbatches:
            self._add(j, READ, TensorKind.DY, READ, *way[first:back], READ)
            self._add(j, SEND_DY, *way[back:], FREE)

    def _add(self, j: int, *words: OpKind | TensorKind | str) -> None:
        """Adds the instructions for each word; a kind of tensor is received."""
        for word in words:
            if isinstance(word, OpKind):
                self.row.append(ir.Compute(Op(word, self._stage, j)))
            elif isinstance(word, TensorKind):
                self._receive(word, j)
            elif word == READ:
                self.row.append(ir.Step(self._stage))
            elif word == FREE:
                taken = [kind for kind, takes in self._takes.items() if takes]
                self.row += [ir.Free(ir.Tensor(kind, self._stage, j)) for kind in taken]
            else:
                self._send(word, j)

    def _receive(self, kind: TensorKind, j: int) -> None:
        if self._takes[kind]:
            tensor = ir.Tensor(kind, self._stage, j)
            buffer = j % self._count if kind is TensorKind.X else len(self.buffers) - 1
            self.row += [ir.Receive(tensor, len(self.messages), buffer), ir.WaitReceive(tensor)]
            self.messages.append(tensor)

    def _send(self, word: str, j: int) -> None:
        """Adds a send without a receiver; it only releases the tensor."""
        kind, to = (TensorKind.X, 1) if word == SEND_X else (TensorKind.DY, -1)
        if self._takes[TensorKind.DY if kind is TensorKind.X else TensorKind.X]:
            tensor = ir.Tensor(kind, self._stage + to, j)
            self.row += [ir.Send(tensor, 0), ir.WaitSend(tensor)]
