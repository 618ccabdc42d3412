"""All that a profile says but its stages, declared once: ranks, delays, links, memory, replicas."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
)

from .fields import (
    MOST_COST,
    MOST_RANKS,
    Bandwidth,
    Cost,
    Limits,
    Unbounded,
    Version,
    Words,
    keep,
    known,
)
from .json_reader import is_count
from .validation import Document, Expected, Whole, said, wrong

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


Rank: TypeAlias = Annotated[int, PlainValidator(_rank)]
Delays: TypeAlias = float | tuple[tuple[float, ...], ...] | None
Groups: TypeAlias = list[list[Annotated[tuple[int, int], PlainValidator(_pair)]]]
_GROUPS = TypeAdapter(Groups)


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
    exposed: Cost | None = None


class ClusterDocument(Document):
    """All that a profile says but its stages."""

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
