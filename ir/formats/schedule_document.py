"""The format of schedules and programs, declared once for readers and verifiers.

Only the shapes of values are checked here, and what they depend on: the numbers of stages and
microbatches. ``docs/formats.md`` describes all keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, TypeAlias

from pydantic import AfterValidator, Field, PlainValidator, ValidationInfo, field_validator
from typing_extensions import TypedDict

from ..documents.fields import (
    MOST_PAIRS,
    Amount,
    Count,
    Limits,
    OneARank,
    Version,
    Words,
    keep,
    known,
)
from ..documents.struct import IN_MEMORY
from ..documents.validation import (
    Document,
    DocumentFault,
    Expected,
    Whole,
    raise_faults,
    removed,
    said,
    wrong,
)
from ..model.profile import Profile
from ..model.schedule import Averaged as Averaged  # noqa: PLC0414 - for verifiers, too
from ..model.schedule import Report as Report  # noqa: PLC0414
from ..model.schedule import Transfer
from ..removed import replaced
from ..units import counted

SCHEDULE, PROGRAM = "pipeloom.schedule", "pipeloom.program"


def _no_level(value: object) -> None:
    """Refuse the removed key ``level`` of an op; ops are not Documents for the sake of speed."""
    if value is not None and (line := replaced("key level")):
        raise removed(line)


class OpEntry(TypedDict):
    op: Literal["F", "B", "W", "BW", "R", "O", "L"]
    stage: Count
    microbatch: Count
    start: Amount
    end: Amount
    level: NotRequired[Annotated[None, PlainValidator(_no_level)]]


@dataclass(frozen=True, slots=True)
class TimedTransfer(Transfer):
    """A transfer with its times in ms; ``place``: its index."""

    REQUIRED = ("start", "end")

    start: Amount = 0.0
    end: Amount = 0.0
    place: Annotated[int, IN_MEMORY] = 0

    def __str__(self) -> str:
        return (
            f"transfers[{self.place}] ({self.kind} {self.stage} copy {self.copy}, rank "
            f"{self.source} to {self.target})"
        )


def _as_in_profile(value: int, info: ValidationInfo) -> int:
    expected = known(info, info.field_name)
    if expected not in (None, value):
        raise wrong(f"{expected}, as in its profile")
    return value


class ScheduleDocument(Document):
    """For each rank, its ops in order, with start and end."""

    format: Annotated[Literal["pipeloom.schedule"], Expected(f'"{SCHEDULE}"')]
    version: Version
    profile: Profile
    ranks: Annotated[Count, AfterValidator(_as_in_profile)]
    stages: Annotated[Count, AfterValidator(_as_in_profile)]
    microbatches: Annotated[int, Whole(1)]
    passing: Literal["activations", "weights", "mixed"]
    placement: Words | None = None
    memory_limit: Limits = None
    order: Annotated[list[list[OpEntry]], OneARank]
    report: Report | None = None
    transfers: list[TimedTransfer] | None = None
    pairs: Annotated[list[list[Count]], OneARank] | None = None
    averages: Annotated[list[list[Averaged]], OneARank] | None = None
    updates: Literal["iteration", "microbatch"] | None = None

    @field_validator("microbatches")
    @classmethod
    def _few_enough(cls, number: int, info: ValidationInfo) -> int:
        most = MOST_PAIRS // (known(info, "stages") or 1)
        if number > most:
            raise wrong(f"a whole number >= 1 and <= {most}")
        if known(info, "each") not in (None, number):
            raise wrong(f"{known(info, 'each')}, as many as the lists in its profile have numbers")
        return keep(number, info)

    @field_validator("order")
    @classmethod
    def _in_range(cls, order: list[list[OpEntry]], info: ValidationInfo) -> list[list[OpEntry]]:
        stages, microbatches = known(info, "stages"), known(info, "microbatches")
        if stages is not None and microbatches is not None:
            raise_faults(_outside(order, stages, microbatches))
        return order

    @field_validator("averages")
    @classmethod
    def _of_stages(cls, rows: Any, info: ValidationInfo) -> Any:
        stages = known(info, "stages")
        raise_faults(
            DocumentFault((r, i, "stage"), wrong(f"a stage from 0 to {stages - 1}"), one.stage)
            for r, row in enumerate(rows or ())
            for i, one in enumerate(row)
            if stages is not None and one.stage >= stages
        )
        return rows

    @field_validator("pairs")
    @classmethod
    def _places(cls, rows: Any, info: ValidationInfo) -> Any:
        """Check that each place is in range: an F, and at the next place the BW run at once with
        it."""
        order = info.data.get("order", ())
        for places, row in zip(rows or (), order, strict=False):
            if len(set(places)) < len(places) or max(places, default=0) >= max(1, len(row) - 1):
                raise wrong(f"{counted(len(order), 'list')}, one per rank, of places in its order")
        return rows


def _outside(order: list[list[OpEntry]], stages: int, microbatches: int) -> Iterator[DocumentFault]:
    there = f"{counted(stages, 'stage')} and {counted(microbatches, 'microbatch')}"
    for rank, row in enumerate(order):
        for at, op in enumerate(row):
            if op["stage"] >= stages or op["microbatch"] >= microbatches:
                name = f"{op['stage']}{op['op']}{op['microbatch']}"
                yield DocumentFault((rank, at), said(f"{name} is outside {there}"))


_NUMBER, _KIND = "[0-9]{1,9}", "(?:x|dy|w|dw)"
_TENSOR = rf"{_KIND}{_NUMBER}\.{_NUMBER}"
_FORMS = (
    f"recv {_TENSOR} from {_NUMBER} into {_NUMBER}",
    f"send {_TENSOR} to {_NUMBER}",
    f"(?:wait recv|wait send|free) {_TENSOR}",
    f"{_NUMBER}(?:F|BW|B|W|R|O|L){_NUMBER}",
    f"reduce {_NUMBER}(?: {_NUMBER})*",
    f"(?:average|step) {_NUMBER}",
    f"relay (?:sums|verdict)(?: from {_NUMBER})?(?: to {_NUMBER})?",
)
Instruction: TypeAlias = Annotated[
    str,
    Field(strict=True, pattern=f"^(?:{'|'.join(_FORMS)})$"),
    Expected("an instruction, such as 'recv x1.0 from 0 into 3'"),
]
Buffer: TypeAlias = Annotated[
    str,
    Field(strict=True, pattern=f"^{_KIND}{_NUMBER}$"),
    Expected("a kind and a stage, such as 'dy1'"),
]


class ProgramDocument(Document):
    """For each rank, its instructions as text, and its receive buffers."""

    format: Annotated[Literal["pipeloom.program"], Expected(f'"{PROGRAM}"')]
    version: Version
    schedule: ScheduleDocument
    instructions: Annotated[list[list[Instruction]], OneARank]
    buffers: Annotated[list[list[Buffer]], OneARank]
