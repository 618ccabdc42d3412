"""The program: the instructions of each rank.

::

    recv x1.0 from 0 into 3   post the receive of F(1, 0)'s input into buffer 3; does not block
    wait recv x1.0            block until it has arrived
    1F0                       compute
    send x2.0 to 2            post the send; does not block
    wait send x2.0            block until it has left (its receive must have been posted)
    free x1.0                 its buffer may be reused
    reduce 0 7                sum the gradients of the parameters that these stages share
    average 1                 start averaging the stage's gradient over the pipeline's replicas;
                              does not block, but the stage's step waits for it
    relay sums from 0 to 2    receive from rank 0 the sum of squares for the gradient norm over the
                              ranks so far, add this rank's own, and send the result to rank 2
    step 1                    the optimizer step of a stage that this rank owns
    relay verdict from 2 to 0 in the next iteration: receive the sum over all ranks from rank 2,
                              and send it to rank 0; it shows whether the step was right

The relays exist only with post-validation (optimizer steps before the gradient norm is known). The
messages from one rank to another form a channel. They are received in the order in which they are
sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from .ops import Op
from .schedule import Schedule


class TensorKind(Enum):
    """The content of a message, named after the op or transfer that it belongs to.

    ``x2.0``: the input of F(2, 0). ``dy2.0``: the input of B(2, 0), the gradient of the stage's
    output. ``w2.5``, ``dw2.5``: stage 2's weights or their gradient in transfer 5, an index into
    the schedule's transfers.
    """

    X = "x"
    DY = "dy"
    WEIGHT = "w"
    GRADIENT = "dw"


@dataclass(frozen=True, slots=True, order=True)
class Tensor:
    """A tensor that is sent; as text, ``x2.0``.

    ``index``: the microbatch; for weights and their gradients, the index of the transfer.
    """

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
    """The content of a relay, which computes the gradient norm over all ranks (post-validation).

    SUMS: the sum of squares of the ranks so far, sent along a chain of all ranks that step.
    VERDICT: the sum over all ranks, sent back along the chain; from it, each rank knows whether its
    step was right.
    """

    SUMS = "sums"
    VERDICT = "verdict"


@dataclass(frozen=True, slots=True)
class Relay:
    """Wait for a sum from ``source``, and pass it on to ``target``; SUMS adds the rank's own part.

    ``source`` is None on the rank where the relay begins, and ``target`` on the rank where it ends.
    """

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
    """A buffer for received tensors of one kind.

    A buffer for activations or their gradients is used only for those of ``stage``, which all have
    the same shape. A buffer for weights or their gradients is used for several stages, of which
    ``stage`` has the largest weights.
    """

    kind: TensorKind
    stage: int

    def __str__(self) -> str:
        return f"{self.kind.value}{self.stage}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Program:
    """The instructions and receive buffers of each rank, compiled from ``schedule``."""

    schedule: Schedule
    instructions: tuple[tuple[Instruction, ...], ...]
    buffers: tuple[tuple[Buffer, ...], ...]

    def __repr__(self) -> str:
        return f"Program({self.schedule!r}, {sum(map(len, self.instructions))} instructions)"
