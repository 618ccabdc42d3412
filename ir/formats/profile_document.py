"""Profiles, by stages and by layers, declared once for all who read them.

What values mean and how they go together is not said here, but for what a shape depends on: ranks,
stages and layers that there are. ``docs/formats.md`` describes all keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
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

from ..units import counted
from .fields import (
    MOST_COST,
    MOST_LAYERS,
    MOST_LEVELS,
    MOST_RANKS,
    MOST_STAGES,
    Amount,
    Bandwidth,
    Cost,
    Limits,
    Name,
    Version,
    Words,
    keep,
    known,
)
from .json_reader import is_count, show
from .packing_document import PackedBatchDocument
from .validation import Document, DocumentFault, Expected, Whole, raise_faults, said, wrong

PROFILE = "pipeloom.profile"
_DELAYS = TypeAdapter(list[list[Amount]])
_COST, _COSTS = TypeAdapter(Cost), TypeAdapter(list[Cost])


def _costs(value: Any) -> float | list[float]:
    """One number, or one a microbatch."""
    if not isinstance(value, list):
        return _COST.validate_python(value)
    if not value:
        raise wrong("a finite number >= 0, or a list of them, one a microbatch")
    return _COSTS.validate_python(value)


def _maybe_costs(value: Any) -> float | list[float] | None:
    return None if value is None else _costs(value)


def _side_by_side(
    one: float | list[float], other: float | list[float]
) -> Iterator[tuple[float, float]]:
    """Two keys' numbers, microbatch by microbatch where either is a list."""
    number = max(len(each) if isinstance(each, list) else 1 for each in (one, other))
    rows = (each if isinstance(each, list) else [each] * number for each in (one, other))
    return zip(*rows, strict=False)


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
    """One delay, or those from each rank (row) to each."""
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


Costs: TypeAlias = Annotated[float | list[float], PlainValidator(_costs)]
MaybeCosts: TypeAlias = Annotated[float | list[float] | None, PlainValidator(_maybe_costs)]
Rank: TypeAlias = Annotated[int, PlainValidator(_rank)]
Delays: TypeAlias = float | tuple[tuple[float, ...], ...] | None
Groups: TypeAlias = list[list[Annotated[tuple[int, int], PlainValidator(_pair)]]]
Ties: TypeAlias = tuple[tuple[int, ...], ...]
Spreads: TypeAlias = float | list[float] | None
_GROUPS = TypeAdapter(Groups)
_SPREAD: TypeAlias = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]
_SPREADS = TypeAdapter(_SPREAD | list[_SPREAD] | None)


class LinkDocument(Document):
    """``latency`` is 0 where it is absent, and in a pair that of the other links."""

    latency: Cost | None = None
    gigabytes_per_second: Bandwidth


PairLink: TypeAlias = Annotated[tuple[Rank, Rank, LinkDocument], BeforeValidator(_three)]


class LinksDocument(LinkDocument):
    """The link of most pairs of ranks, those that differ, and which messages share a wire."""

    pairs: list[PairLink] | None = None
    shared: Annotated[str | Groups | None, PlainValidator(_shared)] = None


class DataParallelDocument(LinkDocument):
    """Replicas of the whole pipeline, and the link between the ranks of one number."""

    size: Annotated[int, Whole(1, MOST_RANKS)]


class LayerDocument(Document):
    """A layer that a stage was cut from; its one module has its name where none are given."""

    name: Name
    kind: Literal["embedding", "block", "mtp", "head", "loss"] | None = None
    modules: Annotated[list[Name] | None, Expected("a list of names")] = None

    @property
    def module_names(self) -> list[str]:
        return [self.name] if self.modules is None else self.modules


class LevelDocument(Document):
    """A way to recompute a microbatch; its name is no word that an option has."""

    name: Name
    t_r: Cost
    m_r: Cost

    @field_validator("name")
    @classmethod
    def _no_option(cls, name: str) -> str:
        if name in ("auto", "all", "none"):
            raise wrong("a name other than auto, all and none")
        return name


EACH = (
    *("t_f", "t_b", "t_w", "t_bw", "t_r", "m_b", "m_w", "m_r", "m_o"),
    *("activation_bytes", "offload_bytes"),
)
"""The keys that may be lists of one number a microbatch."""


class CostDocument(Document):
    """Times in ms, memory in the profile's unit, and bytes; null where it is not known.

    Those of :data:`EACH` may be lists of one number a microbatch, all as long.
    """

    t_f: Costs
    t_b: Costs
    t_w: Costs
    t_fb: Cost | None = None
    m_b: Costs
    m_w: Costs
    activation_bytes: MaybeCosts = None
    weight_bytes: Cost | None = None
    grad_bytes: Cost | None = None
    optimizer_bytes: Cost | None = None
    t_bw: MaybeCosts = None
    t_r: MaybeCosts = None
    m_r: MaybeCosts = None
    m_o: MaybeCosts = None
    offload_bytes: MaybeCosts = None
    levels: list[LevelDocument] | None = None

    @field_validator("m_w", "m_r", "m_o")
    @classmethod
    def _within_m_b(
        cls, value: float | list[float] | None, info: ValidationInfo
    ) -> float | list[float] | None:
        most = info.data.get("m_b")
        for given, bound in () if value is None or most is None else _side_by_side(value, most):
            if given > bound:
                raise wrong(f"at most m_b ({bound:g})")
        return value

    @field_validator("levels")
    @classmethod
    def _several(
        cls, levels: list[LevelDocument] | None, info: ValidationInfo
    ) -> list[LevelDocument] | None:
        """Not too many, no name twice, and none keeps more than all."""
        given = levels or []
        m_b = info.data.get("m_b")
        most = min(m_b) if isinstance(m_b, list) else m_b
        if len(given) > MOST_LEVELS:
            raise said(f"expected at most {MOST_LEVELS} levels, got {len(given)}")
        names = [level.name for level in given]
        found = [
            DocumentFault((i, "name"), wrong("each name once"), name)
            for i, name in enumerate(names)
            if name in names[:i]
        ]
        found += [
            DocumentFault((i, "m_r"), wrong(f"at most m_b ({most:g})"), level.m_r)
            for i, level in enumerate(given)
            if most is not None and level.m_r > most
        ]
        raise_faults(found)
        return levels

    @model_validator(mode="after")
    def _recomputed(self) -> CostDocument:
        """``t_r`` and ``m_r`` come together, and not beside levels."""
        if self.levels and self.t_r is not None:
            raise_faults([DocumentFault(("levels",), said("expected them instead of t_r and m_r"))])
        if (self.t_r is None) != (self.m_r is None):
            given, absent = ("t_r", "m_r") if self.m_r is None else ("m_r", "t_r")
            raise_faults([DocumentFault((absent,), said(f"missing; expected it beside {given}"))])
        return self

    @model_validator(mode="after")
    def _as_long(self, info: ValidationInfo) -> CostDocument:
        """All lists of a profile have one length, that of the first."""
        lengths = {key: len(value) for key in EACH if isinstance(value := getattr(self, key), list)}
        if lengths and info.context is not None:
            number = info.context.setdefault("each", next(iter(lengths.values())))
            line = f"expected a number, or a list of {number} as before, one a microbatch, got"
            raise_faults(
                DocumentFault((key,), said(f"{line} {counted(length, 'number')}"))
                for key, length in lengths.items()
                if length != number
            )
        return self

    @property
    def microbatches(self) -> int | None:
        """How many numbers its lists have; None where there are none."""
        lists = (value for key in EACH if isinstance(value := getattr(self, key), list))
        return next(map(len, lists), None)


def _beside(value: Any) -> None:
    if value is not None:
        line = "expected it beside stages or layers, a number or one each"
        raise said(f"{line}, got {show(value)}")


Beside: TypeAlias = Annotated[None, PlainValidator(_beside)]


class StageDocument(CostDocument):
    layers: list[LayerDocument] | None = None
    spread: Beside = None


class LayerEntry(LayerDocument, CostDocument):
    """One layer of a profile by layers, or ``repeat`` of them one after the other."""

    repeat: Annotated[int, Whole(1, MOST_LAYERS)] | None = None
    with_next: bool | None = None
    spread: Beside = None

    @field_validator("t_bw")
    @classmethod
    def _cut_by_parts(cls, value: float | list[float] | None) -> None:
        if value is not None:
            raise said("expected it of stages alone, as layers are cut by t_b and t_w")

    @model_validator(mode="after")
    def _numbered(self) -> LayerEntry:
        """Layers that one entry stands for have their number in all names."""
        names = (("name", [self.name]), ("modules", self.module_names))
        for key, given in names if (self.repeat or 1) > 1 else ():
            if any("{}" not in name for name in given):
                number = wrong("{} in it, for the number of each repeated layer")
                raise_faults([DocumentFault((key,), number, given[0])])
        return self

    def each(self) -> list[LayerDocument]:
        """The layers that the entry stands for; ``{}`` is the number of each of several."""
        several = (self.repeat or 1) > 1
        numbers = [str(n) if several else "{}" for n in range(self.repeat or 1)]
        return [
            LayerDocument(
                name=self.name.replace("{}", number),
                kind=self.kind,
                modules=[name.replace("{}", number) for name in self.module_names],
            )
            for number in numbers
        ]


class ClusterDocument(Document):
    """All that a profile says but its stages."""

    format: Annotated[Literal["pipeloom.profile"], Expected(f'"{PROFILE}"')]
    version: Version
    name: Words | None = None
    ranks: Annotated[int, Whole(1, MOST_RANKS), AfterValidator(keep)]
    t_comm: Annotated[Delays, PlainValidator(_delays)] = None
    links: LinksDocument | None = None
    memory_limit: Limits = None
    device_memory: Limits = None
    host_link: LinkDocument | None = None
    data_parallel: DataParallelDocument | None = None
    micro_batch: Annotated[int, Whole(1)] | None = None


def _tied_stages(value: Any, info: ValidationInfo) -> Ties:
    """Groups of stages, which may be called by their number or by a layer of theirs."""
    number = known(info, "stages") or 0
    places: dict[int | str, int] = {stage: stage for stage in range(number)}
    for s, stage in enumerate(info.data.get("stages", ())):
        places |= {layer.name: s for layer in stage.layers or ()}
    return _ties(value, places, f"stages of 0..{number - 1}") if number else ()


def _tied_layers(value: Any, info: ValidationInfo) -> Ties:
    """Groups of layers by their names."""
    names = [layer.name for entry in info.data.get("layers", ()) for layer in entry.each()]
    places = {name: place for place, name in enumerate(names)}
    return _ties(value, places, "names of layers") if names else ()


def _ties(value: Any, places: Mapping[Any, int], what: str) -> Ties:
    """Groups of ``what`` that share parameters; ``places``: of each by what it may be called."""
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
            found.append(DocumentFault((i,), wrong(f"two or more different {what}"), entry))
        elif group in groups:
            found.append(DocumentFault((i,), wrong("each group once"), entry))
        elif len(group) > 1:  # else layers of one stage
            groups.append(group)
    raise_faults(found)
    return tuple(sorted(groups))


def _spread(value: Any, number: int | None, what: str) -> Spreads:
    """One relative standard deviation, or one of each of ``number`` stages or layers."""
    try:
        found = _SPREADS.validate_python(value)
    except ValidationError:
        found = []
    if isinstance(found, list) and len(found) != (number or len(found) or -1):
        raise wrong(f"a number from 0 to 1, or a list of {number or 'S'} of them, one a {what}")
    return found


def _spread_of_stages(value: Any, info: ValidationInfo) -> Spreads:
    return _spread(value, known(info, "stages"), "stage")


def _spread_of_layers(value: Any, info: ValidationInfo) -> Spreads:
    layers = info.data.get("layers", ())
    return _spread(value, sum(entry.repeat or 1 for entry in layers) or None, "layer")


class ProfileDocument(ClusterDocument):
    """A profile by stages; one entry is shared by ``num_stages`` stages, or one a rank."""

    stages: list[StageDocument]
    num_stages: Annotated[int, Whole(1, MOST_STAGES)] | None = Field(None, validate_default=True)
    tied: Annotated[Ties, PlainValidator(_tied_stages)] = ()
    spread: Annotated[Spreads, PlainValidator(_spread_of_stages)] = None
    layers: Any = None
    packing: PackedBatchDocument | None = None

    @model_validator(mode="before")
    @classmethod
    def _by_layers(cls, data: Any) -> Any:
        """Refuses a profile by layers in one line: its other keys are for other commands."""
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

    @field_validator("packing")
    @classmethod
    def _of_these(
        cls, packing: PackedBatchDocument | None, info: ValidationInfo
    ) -> PackedBatchDocument | None:
        """One list of sequences a microbatch; the same stages and ranks, with numbers alone."""
        if packing is None:
            return None
        number, base = known(info, "each"), packing.profile
        if len(packing.microbatches) != number:
            wanted = "one list of sequences a microbatch, as many as lists of times have numbers"
            raise_faults([DocumentFault(("microbatches",), said(f"expected {wanted}"))])
        if any(stage.microbatches for stage in base.stages) or base.packing is not None:
            line = "expected one number in place of each list, of the microbatch that was measured"
            raise_faults([DocumentFault(("profile", "stages"), said(line))])
        for key in ("ranks", "num_stages"):
            if getattr(base, key) != info.data.get(key, getattr(base, key)):
                found = wrong(f"{info.data[key]}, as the packed profile has")
                raise_faults([DocumentFault(("profile", key), found, getattr(base, key))])
        return packing


class LayeredProfileDocument(ClusterDocument):
    """A profile by layers, in forward order."""

    layers: list[LayerEntry]
    tied: Annotated[Ties, PlainValidator(_tied_layers)] = ()
    spread: Annotated[Spreads, PlainValidator(_spread_of_layers)] = None
    stages: Any = None
    num_stages: Any = None

    @field_validator("layers")
    @classmethod
    def _told_apart(cls, layers: list[LayerEntry]) -> list[LayerEntry]:
        """Some layers, not too many, and no name of one, or else of a module, twice."""
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


PackedBatchDocument.model_rebuild(_types_namespace={"ProfileDocument": ProfileDocument})
ProfileDocument.model_rebuild()
