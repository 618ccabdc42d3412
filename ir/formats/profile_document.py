"""The format of profiles, by stages and by layers, declared once for all readers.

Only the shapes of values are checked here, and what they depend on: the numbers of ranks, stages
and layers. ``docs/formats.md`` describes all keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

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

from ..errors import did_you_mean
from .fields import (
    MOST_COST,
    MOST_LAYERS,
    MOST_RANKS,
    MOST_STAGES,
    Bandwidth,
    Cost,
    Limits,
    Unbounded,
    Version,
    Words,
    keep,
    known,
)
from .json_reader import is_count, show
from .stage_document import LayerEntry, StageDocument
from .validation import Document, DocumentFault, Expected, Whole, raise_faults, said, wrong

PROFILE = "pipeloom.profile"
RANKS = 'the GPUs of the pipeline, such as "ranks": 8'
_DELAYS = TypeAdapter(list[list[Unbounded]])


def _rank(value: Any, info: ValidationInfo) -> int:
    most = (known(info, "ranks") or MOST_RANKS) - 1
    if not is_count(value) or not 0 <= value <= most:
        raise wrong(f"a rank from 0 to {most}")
    return int(value)


def _pair(value: Any, info: ValidationInfo) -> tuple[int, int]:
    most = (known(info, "ranks") or MOST_RANKS) - 1
    ends = value if isinstance(value, list) and all(map(is_count, value)) else []
    if len(ends) != 2 or ends[0] == ends[1] or min(ends) < 0 or max(ends) > most:
        raise wrong(f"[rank, another rank] from 0 to {most}")
    return ends[0], ends[1]


def _three(value: Any) -> Any:
    if not isinstance(value, list) or len(value) != 3:
        raise wrong("[rank, rank, link]")
    return tuple(value)


def _shared(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, list):
        return _GROUPS.validate_python(value, context=info.context)
    if value not in (None, "pairs", "ports", "ring"):
        raise wrong("pairs, ports, ring or a list of groups of pairs")
    return value


def _delays(value: Any, info: ValidationInfo) -> float | tuple[tuple[float, ...], ...] | None:
    """One delay, or a matrix with the delays from rank (row) to rank."""
    if value is None:
        return None
    ranks = known(info, "ranks")
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


Rank: TypeAlias = Annotated[int, PlainValidator(_rank)]
Delays: TypeAlias = float | tuple[tuple[float, ...], ...] | None
Groups: TypeAlias = list[list[Annotated[tuple[int, int], PlainValidator(_pair)]]]
_GROUPS = TypeAdapter(Groups)


class LinkDocument(Document):
    """A link. ``latency`` defaults to 0, in ``pairs`` to that of the other links."""

    latency: Cost | None = None
    gigabytes_per_second: Bandwidth


PairLink: TypeAlias = Annotated[tuple[Rank, Rank, LinkDocument], BeforeValidator(_three)]


class LinksDocument(LinkDocument):
    """The link of most pairs of ranks, the exceptions, and which messages share a wire."""

    pairs: list[PairLink] | None = None
    shared: Annotated[str | Groups | None, PlainValidator(_shared)] = None


class DataParallelDocument(LinkDocument):
    """Replicas of the pipeline, and the link between ranks of the same number."""

    size: Annotated[int, Whole(1, MOST_RANKS)]
    exposed: Cost | None = None


class ClusterDocument(Document):
    """All keys of a profile except its stages or layers."""

    format: Annotated[Literal["pipeloom.profile"], Expected(f'"{PROFILE}"')]
    version: Version
    name: Words | None = None
    ranks: Annotated[int, Whole(1, MOST_RANKS), AfterValidator(keep), Field(description=RANKS)]
    t_comm: Annotated[Delays, PlainValidator(_delays)] = None
    links: LinksDocument | None = None
    memory_limit: Limits = None
    device_memory: Limits = None
    host_link: LinkDocument | None = None
    data_parallel: DataParallelDocument | None = None
    micro_batch: Annotated[int, Whole(1)] | None = None
    barrier: bool | None = None


Ties: TypeAlias = tuple[tuple[int, ...], ...]
Spreads: TypeAlias = float | list[float] | None
_SPREAD: TypeAlias = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]
_SPREADS = TypeAdapter(_SPREAD | list[_SPREAD] | None)


def _tied_stages(value: Any, info: ValidationInfo) -> Ties:
    """Groups of tied stages; a stage is given by its number or by the name of one of its layers."""
    number = known(info, "stages") or 0
    places: dict[int | str, int] = {stage: stage for stage in range(number)}
    for s, stage in enumerate(info.data.get("stages", ())):
        places |= {layer.name: s for layer in stage.layers or ()}
    return _ties(value, places, f"stages of 0..{number - 1}") if number else ()


def _tied_layers(value: Any, info: ValidationInfo) -> Ties:
    """Groups of tied layers, given by their names."""
    names = [layer.name for entry in info.data.get("layers", ()) for layer in entry.each()]
    places = {name: place for place, name in enumerate(names)}
    return _ties(value, places, "names of layers") if names else ()


def _ties(value: Any, places: Mapping[Any, int], what: str) -> Ties:
    """Groups of ``what`` that share parameters, as sorted tuples of places.

    ``places``: the place of each number or name by which a member can be given.
    """
    if not isinstance(value, list | None):
        raise wrong("a list")
    groups: list[tuple[int, ...]] = []
    found: list[DocumentFault] = []
    for i, entry in enumerate(value or ()):
        members = entry if isinstance(entry, list) else []
        there = all(type(member) in (int, str) and member in places for member in members)
        sound = there and len(members) >= 2 and len(set(members)) == len(members)
        group = tuple(sorted({places[member] for member in members})) if sound else ()
        if not sound:
            words = f"two or more different {what}{_unknown(members, places)}"
            found.append(DocumentFault((i,), wrong(words), entry))
        elif group in groups:
            found.append(DocumentFault((i,), wrong("each group once"), entry))
        elif len(group) > 1:  # otherwise, all are layers of one stage
            groups.append(group)
    raise_faults(found)
    return tuple(sorted(groups))


def _unknown(members: Sequence[Any], places: Mapping[Any, int]) -> str:
    """`` (embedding: no layer has this name; did you mean embed?)`` for the first unknown name."""
    names = [name for name in places if isinstance(name, str)]
    for member in members:
        if names and isinstance(member, str) and member not in places:
            return f" ({member}: no layer has this name{did_you_mean(member, names)})"
    return ""


def _spread(value: Any, number: int | None, what: str) -> Spreads:
    """One relative standard deviation, or one for each of ``number`` stages or layers."""
    try:
        found = _SPREADS.validate_python(value)
    except ValidationError:
        found = []
    if isinstance(found, list) and len(found) != (number or len(found) or -1):
        raise wrong(f"a number from 0 to 1, or a list of {number or 'S'} of them, one per {what}")
    return found


def _spread_of_stages(value: Any, info: ValidationInfo) -> Spreads:
    return _spread(value, known(info, "stages"), "stage")


def _spread_of_layers(value: Any, info: ValidationInfo) -> Spreads:
    layers = info.data.get("layers", ())
    return _spread(value, sum(entry.repeat or 1 for entry in layers) or None, "layer")


def _at_least_stages(number: int, info: ValidationInfo) -> int:
    least = known(info, "stages") or 0
    if number < least:
        raise wrong(f"at least {least}, the number of stages")
    return number


class ProfileDocument(ClusterDocument):
    """A profile by stages. A single entry is shared by ``num_stages`` stages (default: one per
    rank)."""

    stages: list[StageDocument]
    num_stages: Annotated[int, Whole(1, MOST_STAGES)] | None = Field(None, validate_default=True)
    max_stages: Annotated[int, Whole(1), AfterValidator(_at_least_stages)] | None = None
    tied: Annotated[Ties, PlainValidator(_tied_stages)] = ()
    spread: Annotated[Spreads, PlainValidator(_spread_of_stages)] = None
    layers: list[Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _by_layers(cls, data: Any) -> Any:
        """Refuse a profile by layers with one line; reports on its other keys would mislead."""
        if isinstance(data, dict) and "stages" not in data and data.get("layers") is not None:
            line = "missing; expected a list (it has layers, which optimize and build cut)"
            raise_faults([DocumentFault(("stages",), said(line))])
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
        entries, ranks = len(info.data.get("stages", ())), known(info, "ranks")
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
    max_stages: Annotated[int, Whole(1)] | None = None
    tied: Annotated[Ties, PlainValidator(_tied_layers)] = ()
    spread: Annotated[Spreads, PlainValidator(_spread_of_layers)] = None
    stages: list[Any] | None = None
    num_stages: Any = None

    @field_validator("layers")
    @classmethod
    def _told_apart(cls, layers: list[LayerEntry]) -> list[LayerEntry]:
        """Check that there are 1 to MOST_LAYERS layers, with unique names and modules."""
        number = sum(entry.repeat or 1 for entry in layers)
        if not layers:
            raise wrong("at least one layer")
        if number > MOST_LAYERS:
            raise said(f"expected at most {MOST_LAYERS} layers, got {number}")
        each = [layer for entry in layers for layer in entry.each()]
        names = Counter(layer.name for layer in each)
        modules = Counter(name for layer in each for name in layer.module_names)
        for key, counts in (("name", names), ("modules", modules)):
            twice = sorted(name for name, count in counts.items() if count > 1)
            lines = (f"expected {show(name)} once, got it twice" for name in twice)
            raise_faults(DocumentFault((key,), said(line)) for line in lines)
        return layers
