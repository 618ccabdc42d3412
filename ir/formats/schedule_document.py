"""The format of the files of schedules and programs, as used both to read and to verify them.

Validation with these classes checks the shape of values: their types, that there is one list per
rank, and that the stages and microbatches of ops exist. Whether a schedule or program is valid is
checked in :mod:`..verify`. ``docs/formats.md`` describes all keys.
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
    """Raise a fault if an op has a value for the key ``level``, which was removed.

    Classes of the type Document do this for all removed keys, but would be too slow for ops.
    """
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
    """A transfer in a file, with its start and end in ms.

    ``place``: its index in the list of transfers, which is not a key of the file.
    """

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
    """A file with a schedule: for each rank, its ops in order, each with its start and end in ms.

    It also contains the profile and the other parts of the problem, the report, and for some
    schedules transfers, pairs and averages over replicas (:mod:`..model.schedule`).
    """

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
        """Check that each pair exists in the rank's order; return ``rows``.

        ``rows``: for each rank, the positions of the F's of its pairs. As the BW is at the next
        position, a position must be below the rank's last one. The kinds of the ops are not checked
        here.
        """
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
    """A file with a program: its schedule, and each rank's instructions (text) and buffers."""

    format: Annotated[Literal["pipeloom.program"], Expected(f'"{PROGRAM}"')]
    version: Version
    schedule: ScheduleDocument
    instructions: Annotated[list[list[Instruction]], OneARank]
    buffers: Annotated[list[list[Buffer]], OneARank]
