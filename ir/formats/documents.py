"""The documents, declared once: readers and verifiers take their shape from here alone.

What values mean and how they go together is not said here, but for what a shape depends on: one
list a rank, ranks and stages that are there. The context of a validation holds ``ranks``,
``stages`` and ``microbatches`` once these are known; where one of them is wrong, what depends on it
is not to blame. ``docs/formats.md`` describes all keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NotRequired, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from typing_extensions import TypedDict

from ..units import counted
from .instruction_text import InstructionText, parse_buffer, parse_text
from .json_reader import is_count
from .validation import Document, Expected, Fault, Whole, raise_faults, said, wrong

PROFILE, SCHEDULE, PROGRAM = "pipeloom.profile", "pipeloom.schedule", "pipeloom.program"
# larger ones are mistakes, and arrays of that size would exhaust memory
MOST_RANKS, MOST_STAGES, MOST_LAYERS = 4096, 65_536, 512
MOST_PAIRS = 20_000_000
"""Stages times microbatches."""
LARGEST = 1e100  # so that thousands of them can be summed
MOST_COST = 1e80  # what millions of ops and delays sum up to is still a number for a schedule
SLOWEST = 1e-9  # gigabytes a second

Amount: TypeAlias = Annotated[
    float,
    Field(strict=True, ge=0, le=LARGEST, allow_inf_nan=False),
    Expected("a finite number >= 0"),
]
Cost: TypeAlias = Annotated[Amount, Expected(f"at most {MOST_COST:g}", most=MOST_COST)]
Bandwidth: TypeAlias = Annotated[
    Amount,
    Expected("more than 0", above=0.0),
    Expected(f"at least {SLOWEST:g}, a byte a second", least=SLOWEST),
]
Number: TypeAlias = Annotated[
    float,
    Field(strict=True, ge=-LARGEST, le=LARGEST, allow_inf_nan=False),
    Expected("a finite number"),
]
Count: TypeAlias = Annotated[int, Whole()]
Name: TypeAlias = Annotated[str, Field(strict=True, min_length=1), Expected("a name")]
Version: TypeAlias = Annotated[int, Field(strict=True, ge=1, le=1), Expected("1")]

_LIMITS = TypeAdapter(list[Amount | None])
_DELAYS = TypeAdapter(list[list[Amount]])


def _known(info: ValidationInfo, key: str | None) -> int | None:
    """``ranks``, ``stages`` or ``microbatches`` as far as the document has been read."""
    found: int | None = info.context.get(key) if info.context else None
    return found


def _keep(value: int, info: ValidationInfo) -> int:
    """Lets what follows know the number, by the name of its field."""
    if info.context is not None:
        info.context[info.field_name] = value
    return value


def _is_rank(value: Any, ranks: int | None) -> bool:
    return is_count(value) and 0 <= value < (ranks or MOST_RANKS)


def _rank(value: object, info: ValidationInfo) -> object:
    ranks = _known(info, "ranks")
    if not _is_rank(value, ranks):
        raise wrong(f"a rank from 0 to {(ranks or MOST_RANKS) - 1}")
    return value


def _pair(value: Any, info: ValidationInfo) -> tuple[int, int]:
    ranks = _known(info, "ranks")
    sound = isinstance(value, list) and len(value) == 2 and value[0] != value[1]
    if not (sound and all(_is_rank(end, ranks) for end in value)):
        raise wrong(f"[rank, another rank] from 0 to {(ranks or MOST_RANKS) - 1}")
    return value[0], value[1]


def _link_entry(value: Any) -> Any:
    if not isinstance(value, list) or len(value) != 3:
        raise wrong("[rank, rank, link]")
    return tuple(value)


def _one_a_rank(rows: list[Any], info: ValidationInfo) -> list[Any]:
    ranks = _known(info, "ranks")
    if ranks is not None and len(rows) != ranks:
        given = counted(len(rows), "list")
        raise said(f"expected {counted(ranks, 'list')}, one a rank, got {given}")
    return rows


def _per_rank(value: Any, info: ValidationInfo) -> tuple[float, ...] | None:
    """One number a rank: one given for all is each's, and null in a list is unlimited."""
    if value is None:
        return None
    ranks = _known(info, "ranks")
    given = value if isinstance(value, list) else [value] * (ranks or 1)
    try:
        found = _LIMITS.validate_python(given)
    except ValidationError:
        found = []
    if len(found) != (ranks or max(1, len(given))):
        raise wrong(f"a finite number >= 0, or a list of {ranks or 'P'} of them")
    return tuple(math.inf if limit is None else limit for limit in found)


def _delays(value: Any, info: ValidationInfo) -> float | tuple[tuple[float, ...], ...] | None:
    """One delay, or those from each rank (row) to each."""
    if value is None:
        return None
    ranks = _known(info, "ranks")
    try:
        rows = _DELAYS.validate_python(value if isinstance(value, list) else [[value]])
    except ValidationError:
        rows = []
    size = (ranks or len(rows)) if isinstance(value, list) else 1
    if not rows or {len(rows), *map(len, rows)} != {size}:
        p = ranks or "P"
        raise wrong(f"a finite number >= 0 or a {p} x {p} matrix of them")
    largest = max(map(max, rows))
    if largest > MOST_COST:
        raise said(f"expected at most {MOST_COST:g} each, got {largest:g}")
    return tuple(map(tuple, rows)) if isinstance(value, list) else rows[0][0]


def _shared(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, list):
        return _GROUPS.validate_python(value, context=info.context)
    if value not in ("pairs", "ports", "ring"):
        raise wrong("pairs, ports, ring or a list of groups of pairs")
    return value


RankCount: TypeAlias = Annotated[int, Whole(1, MOST_RANKS), AfterValidator(_keep)]
Rank: TypeAlias = Annotated[int, PlainValidator(_rank)]
Groups: TypeAlias = list[list[Annotated[tuple[int, int], PlainValidator(_pair)]]]
PerRank: TypeAlias = Annotated[tuple[float, ...] | None, PlainValidator(_per_rank)]
OneARank = AfterValidator(_one_a_rank)
_GROUPS = TypeAdapter(Groups)


class LinkDocument(Document):
    """``latency`` is 0 where it is absent, and in a pair that of the other links."""

    latency: Cost | None = None
    gigabytes_per_second: Bandwidth


class LinksDocument(LinkDocument):
    """The link of most pairs of ranks, those that differ, and which messages share a wire."""

    pairs: list[Annotated[tuple[Rank, Rank, LinkDocument], BeforeValidator(_link_entry)]] | None = (
        None
    )
    shared: Annotated[str | Groups | None, PlainValidator(_shared)] = None


class DataParallelDocument(LinkDocument):
    """Replicas of the whole pipeline and the link between the ranks of one number."""

    size: Annotated[int, Whole(1, MOST_RANKS)]


class LayerDocument(Document):
    """A layer that a stage was cut from; ``modules`` is ``[name]`` where it is absent."""

    name: Name
    kind: Literal["embedding", "block", "mtp", "head", "loss"] | None = None
    modules: Annotated[list[Name] | None, Expected("a list of names")] = None


class CostDocument(Document):
    """Times in ms, memory in the profile's unit, and bytes; null where it is not known."""

    t_f: Cost
    t_b: Cost
    t_w: Cost
    t_fb: Cost | None = None
    m_b: Cost
    m_w: Cost
    activation_bytes: Cost | None = None
    weight_bytes: Cost | None = None
    grad_bytes: Cost | None = None
    optimizer_bytes: Cost | None = None
    t_bw: Cost | None = None
    t_r: Cost | None = None
    m_r: Cost | None = None
    m_o: Cost | None = None
    offload_bytes: Cost | None = None

    @field_validator("m_w", "m_r", "m_o")
    @classmethod
    def _within_m_b(cls, value: float | None, info: ValidationInfo) -> float | None:
        most = info.data.get("m_b")
        if value is not None and most is not None and value > most:
            raise wrong(f"at most m_b ({most:g})")
        return value

    @model_validator(mode="after")
    def _recomputed(self) -> CostDocument:
        """``t_r`` and ``m_r`` come together."""
        if (self.t_r is None) != (self.m_r is None):
            given, absent = ("t_r", "m_r") if self.m_r is None else ("m_r", "t_r")
            raise_faults([Fault((absent,), said(f"missing; expected it beside {given}"))])
        return self


class StageDocument(CostDocument):
    layers: list[LayerDocument] | None = None


class LayerEntry(LayerDocument, CostDocument):
    """One layer of a profile by layers, or ``repeat`` of them one after the other."""

    repeat: Annotated[int, Whole(1, MOST_LAYERS)] | None = None
    with_next: bool | None = None

    @field_validator("t_bw")
    @classmethod
    def _cut_by_parts(cls, value: float | None) -> None:
        if value is not None:
            raise said("expected it of stages alone, as layers are cut by t_b and t_w")

    @model_validator(mode="after")
    def _numbered(self) -> LayerEntry:
        """Layers that one entry stands for have their number in all names."""
        names = {"name": [self.name], "modules": self.modules or []}
        for key, values in names.items() if (self.repeat or 1) > 1 else ():
            if any("{}" not in value for value in values):
                number = wrong("{} in it, for the number of each repeated layer")
                raise_faults([Fault((key,), number, values[0])])
        return self


class ClusterDocument(Document):
    """All that a profile says but its stages."""

    format: Annotated[Literal["pipeloom.profile"], Expected(f'"{PROFILE}"')]
    version: Version
    name: str | None = None
    ranks: RankCount
    t_comm: Annotated[float | tuple[tuple[float, ...], ...] | None, PlainValidator(_delays)] = None
    links: LinksDocument | None = None
    memory_limit: PerRank = None
    device_memory: PerRank = None
    host_link: LinkDocument | None = None
    data_parallel: DataParallelDocument | None = None


class ProfileDocument(ClusterDocument):
    """A profile by stages; one entry is shared by ``num_stages`` stages, or one a rank."""

    stages: list[StageDocument]
    num_stages: Annotated[int, Whole(1, MOST_STAGES)] | None = Field(None, validate_default=True)
    layers: Any = None

    @model_validator(mode="before")
    @classmethod
    def _by_layers(cls, data: Any) -> Any:
        """Of a profile by layers nothing else is said: all of it is for other commands."""
        if isinstance(data, dict) and "stages" not in data and data.get("layers") is not None:
            line = "missing; expected a list (it has layers, which optimize and build cut)"
            raise_faults([Fault(("stages",), said(line))])
        return data

    @field_validator("stages")
    @classmethod
    def _some(cls, stages: list[StageDocument]) -> list[StageDocument]:
        if not stages:
            raise wrong("at least one stage")
        return stages

    @field_validator("num_stages")
    @classmethod
    def _count_stages(cls, number: int | None, info: ValidationInfo) -> int | None:
        entries, ranks = len(info.data.get("stages", ())), _known(info, "ranks")
        if number is None:
            number = ranks if entries == 1 else entries
        elif entries not in (0, 1, number):
            raise wrong(f"{entries}, the number of entries in stages, or one shared entry")
        if info.context is not None and entries and number is not None:
            info.context["stages"] = number
        return number


class LayeredProfileDocument(ClusterDocument):
    """A profile by layers, in forward order."""

    layers: list[LayerEntry]
    stages: Any = None
    num_stages: Any = None

    @field_validator("layers")
    @classmethod
    def _some(cls, layers: list[LayerEntry]) -> list[LayerEntry]:
        if not layers:
            raise wrong("at least one layer")
        return layers


class OpEntry(TypedDict):
    op: Literal["F", "B", "W", "BW", "R", "O", "L"]
    stage: Count
    microbatch: Count
    start: Amount
    end: Amount


TransferEntry = TypedDict(
    "TransferEntry",
    {
        "tensor": Literal["weight", "gradient"],
        "stage": Count,
        "copy": Count,
        "from": Count,
        "to": Count,
        "after": Count,
        "before": Count,
        "room": NotRequired[Count | None],
        "blocks": NotRequired[Count | None],
        "start": Amount,
        "end": Amount,
    },
)


class AverageEntry(TypedDict):
    stage: Count
    start: Amount
    end: Amount


class ReportDocument(Document):
    """How a schedule came to be and what it comes to; null where that is not known."""

    objective: Literal["period", "makespan"] | None = None
    period: Number | None = None
    makespan: Number | None = None
    bubble_rate: Number | None = None
    lower_bound: Amount | None = None
    bound_name: str | None = None
    gap: Number | None = None
    status: Literal["optimal", "feasible"] | None = None
    peak_memory: list[Number] | None = None
    family: str | None = None
    solver: str | None = None
    solve_seconds: Amount | None = None
    seed: Count | None = None
    step: Number | None = None


def _as_in_profile(value: int, info: ValidationInfo) -> int:
    known = _known(info, info.field_name)
    if known not in (None, value):
        raise wrong(f"{known}, as in its profile")
    return value


class ScheduleDocument(Document):
    """What each rank computes when. Every op is of a stage and a microbatch that there are."""

    format: Annotated[Literal["pipeloom.schedule"], Expected(f'"{SCHEDULE}"')]
    version: Version
    profile: ProfileDocument
    ranks: Annotated[Count, AfterValidator(_as_in_profile)]
    stages: Annotated[Count, AfterValidator(_as_in_profile)]
    microbatches: Annotated[int, Whole(1)]
    passing: Literal["activations", "weights", "mixed"]
    memory_limit: PerRank = None
    order: Annotated[list[list[OpEntry]], OneARank]
    report: ReportDocument | None = None
    transfers: list[TransferEntry] | None = None
    pairs: Annotated[list[list[Count]], OneARank] | None = None
    averages: Annotated[list[list[AverageEntry]], OneARank] | None = None
    updates: Literal["iteration", "microbatch"] | None = None

    @field_validator("microbatches")
    @classmethod
    def _few_enough(cls, number: int, info: ValidationInfo) -> int:
        most = MOST_PAIRS // (_known(info, "stages") or 1)
        if number > most:
            raise wrong(f"a whole number >= 1 and <= {most}")
        return _keep(number, info)

    @field_validator("order")
    @classmethod
    def _in_range(cls, order: list[list[OpEntry]], info: ValidationInfo) -> list[list[OpEntry]]:
        stages, microbatches = _known(info, "stages"), _known(info, "microbatches")
        if stages is not None and microbatches is not None:
            raise_faults(_outside(order, stages, microbatches))
        return order

    @field_validator("averages")
    @classmethod
    def _of_stages(cls, rows: Any, info: ValidationInfo) -> Any:
        stages = _known(info, "stages")
        raise_faults(
            Fault((r, i, "stage"), wrong(f"a stage from 0 to {stages - 1}"), entry["stage"])
            for r, row in enumerate(rows or ())
            for i, entry in enumerate(row)
            if stages is not None and entry["stage"] >= stages
        )
        return rows

    @field_validator("pairs")
    @classmethod
    def _places(cls, rows: Any, info: ValidationInfo) -> Any:
        """An F at each place, and the BW that runs at once with it at the next."""
        order = info.data.get("order", ())
        for places, row in zip(rows or (), order, strict=False):
            if len(set(places)) < len(places) or max(places, default=0) >= max(1, len(row) - 1):
                raise wrong(f"{counted(len(order), 'list')}, one a rank, of places in its order")
        return rows


def _outside(order: list[list[OpEntry]], stages: int, microbatches: int) -> Iterator[Fault]:
    there = f"{counted(stages, 'stage')} and {counted(microbatches, 'microbatch')}"
    for rank, row in enumerate(order):
        for at, op in enumerate(row):
            if op["stage"] >= stages or op["microbatch"] >= microbatches:
                name = f"{op['stage']}{op['op']}{op['microbatch']}"
                yield Fault((rank, at), said(f"{name} is outside {there}"))


class ProgramDocument(Document):
    """What each rank does, an instruction a line, and the buffers that it receives into."""

    format: Annotated[Literal["pipeloom.program"], Expected(f'"{PROGRAM}"')]
    version: Version
    schedule: ScheduleDocument
    instructions: Annotated[
        list[list[Annotated[InstructionText, PlainValidator(parse_text)]]], OneARank
    ]
    buffers: Annotated[
        list[list[Annotated[tuple[str, int], PlainValidator(parse_buffer)]]], OneARank
    ]
