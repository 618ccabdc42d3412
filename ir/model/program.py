"""The program: what each rank does, instruction by instruction.

::

    recv x1.0 from 0 into 3   post the receive of F(1, 0)'s input into buffer 3; does not block
    wait recv x1.0            block until it is there
    1F0                       compute
    send x2.0 to 2            post the send; does not block
    wait send x2.0            block until it has left (its receive must have been posted)
    free x1.0                 its buffer may be used again
    reduce 0 7                sum the gradients of the parameters that these stages share
    relay sums from 0 to 2    add this rank's part of the norm to rank 0's sum, and pass it on
    average 1                 begin to average the stage's gradient over the pipeline's replicas,
                              without blocking: its step waits
    step 1                    the optimizer's step of a stage that this rank owns
    relay verdict from 2 to 0 in the next iteration: what the sum of all says of that step

Messages between two ranks in one direction form a channel: they are received in the order in
which they are sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from .ops import Op
from .schedule import Schedule


class TensorKind(Enum):
    """The content of a message, named by who needs it.

    ``x2.0``: the input of F(2, 0). ``dy2.0``: the input of B(2, 0), the gradient of the stage's
    output. ``w2.5``, ``dw2.5``: stage 2's weights or their gradient, on their transfer 5 (the
    index into the schedule's transfers).
    """

    X = "x"
    DY = "dy"
    WEIGHT = "w"
    GRADIENT = "dw"


@dataclass(frozen=True, slots=True, order=True)
class Tensor:
    """A tensor that is sent; ``index`` is the microbatch, or the transfer of a weight."""

    kind: TensorKind
    stage: int
    index: int

    def __str__(self) -> str:
        return f"{self.kind.value}{self.stage}.{self.index}"


@dataclass(frozen=True, slots=True)
class Compute:
    op: Op

    def __str__(self) -> str:
        return str(self.op)


@dataclass(frozen=True, slots=True)
class Receive:
    tensor: Tensor
    source: int
    buffer: int

    def __str__(self) -> str:
        return f"recv {self.tensor} from {self.source} into {self.buffer}"


@dataclass(frozen=True, slots=True)
class Send:
    tensor: Tensor
    target: int

    def __str__(self) -> str:
        return f"send {self.tensor} to {self.target}"


@dataclass(frozen=True, slots=True)
class WaitReceive:
    tensor: Tensor

    def __str__(self) -> str:
        return f"wait recv {self.tensor}"


@dataclass(frozen=True, slots=True)
class WaitSend:
    tensor: Tensor

    def __str__(self) -> str:
        return f"wait send {self.tensor}"


@dataclass(frozen=True, slots=True)
class Free:
    tensor: Tensor

    def __str__(self) -> str:
        return f"free {self.tensor}"


@dataclass(frozen=True, slots=True)
class Reduce:
    stages: tuple[int, ...]

    def __str__(self) -> str:
        return f"reduce {' '.join(map(str, self.stages))}"


@dataclass(frozen=True, slots=True)
class Average:
    stage: int

    def __str__(self) -> str:
        return f"average {self.stage}"


@dataclass(frozen=True, slots=True)
class Step:
    stage: int

    def __str__(self) -> str:
        return f"step {self.stage}"


class RelayKind(Enum):
    """Numbers sent along a norm relay: partial ``SUMS`` one way, the ``VERDICT`` of all back."""

    SUMS = "sums"
    VERDICT = "verdict"


@dataclass(frozen=True, slots=True)
class Relay:
    """Waits for numbers from ``source`` (None: first), then passes them on (None: last)."""

    kind: RelayKind
    source: int | None
    target: int | None

    def __str__(self) -> str:
        ends = (("from", self.source), ("to", self.target))
        words = (f" {word} {rank}" for word, rank in ends if rank is not None)
        return f"relay {self.kind.value}{''.join(words)}"


Instruction: TypeAlias = (
    Compute | Receive | Send | WaitReceive | WaitSend | Free | Reduce | Average | Step | Relay
)


@dataclass(frozen=True, slots=True)
class Buffer:
    """A place for received tensors of one kind.

    Activations and their gradients: of this stage, which all have the same shape. Weights and
    their gradients: of any stage, of which this one is the largest.
    """

    kind: TensorKind
    stage: int

    def __str__(self) -> str:
        return f"{self.kind.value}{self.stage}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Program:
    """Per rank: instructions and receive buffers; ``schedule`` is what it was compiled from."""

    schedule: Schedule
    instructions: tuple[tuple[Instruction, ...], ...]
    buffers: tuple[tuple[Buffer, ...], ...]

    def __repr__(self) -> str:
        return f"Program({self.schedule!r}, {sum(map(len, self.instructions))} instructions)"
