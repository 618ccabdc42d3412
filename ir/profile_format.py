"""Profiles as JSON: reading with every error of the file at once, and writing."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from .errors import InputError
from .profile import Link, Links, Profile, StageProfile
from .reading import Reader, is_amount, is_count, is_matrix, read_json, show

PROFILE = "pipeloom.profile"
_TIMES = ("t_f", "t_b", "t_w")
# larger ones are mistakes, and arrays of that size would exhaust memory
MOST_RANKS, MOST_STAGES = 4096, 65_536
SLOWEST = 1e-9  # gigabytes a second
_SIZES = ("activation_bytes", "weight_bytes", "grad_bytes", "optimizer_bytes")


def load_profile(path: str) -> Profile:
    """Reads a profile. Raises InputError with every error of the file."""
    return parse_profile(read_json(path), path)


def parse_profile(data: dict[str, Any], where: str) -> Profile:
    errors: list[str] = []
    profile = read_profile(Reader(data, where, errors))
    if errors:
        raise InputError(*errors)
    return profile


def read_profile(reader: Reader) -> Profile:
    reader.format(PROFILE)
    ranks = reader.count("ranks", least=1, most=MOST_RANKS)
    return Profile(
        stages=_stages(reader, ranks),
        ranks=ranks,
        t_comm=_t_comm(reader, ranks),
        links=_links(reader, ranks) if reader.has("links") else None,
        memory_limit=per_rank(reader, "memory_limit", ranks),
        device_memory=per_rank(reader, "device_memory", ranks),
        name=reader.text("name") if reader.has("name") else "",
    )


def _stages(reader: Reader, ranks: int) -> tuple[StageProfile, ...]:
    entries = reader.items("stages")
    stages = tuple(
        _stage(Reader(entry, f"{reader.where}: stages[{s}]", reader.errors))
        for s, entry in enumerate(entries)
    )
    if not stages and isinstance(reader.data.get("stages"), list):
        reader.wrong("stages", [], "at least one stage")
    if not reader.has("num_stages"):
        return stages * ranks if len(stages) == 1 else stages
    number = reader.count("num_stages", least=1, most=MOST_STAGES)
    if len(stages) not in (1, number):
        reader.wrong(
            "num_stages",
            number,
            f"{len(stages)}, the number of entries in stages, or one shared entry",
        )
    return stages * number if len(stages) == 1 else stages


def _stage(reader: Reader) -> StageProfile:
    t_f, t_b, t_w = map(reader.number, _TIMES)
    m_b, m_w = reader.number("m_b", 1.0), reader.number("m_w")
    if m_w > m_b:
        reader.wrong("m_w", m_w, f"at most m_b ({m_b:g})")
    activation, weight, grad, optimizer = map(reader.optional_number, _SIZES)
    return StageProfile(t_f, t_b, t_w, m_b, m_w, activation, weight, grad, optimizer)


def _t_comm(reader: Reader, ranks: int) -> float | tuple[tuple[float, ...], ...] | None:
    if not reader.has("t_comm"):
        return None
    value = reader.data["t_comm"]
    if is_amount(value):
        return float(value)
    if is_matrix(value, ranks):
        return tuple(tuple(map(float, row)) for row in value)
    reader.wrong("t_comm", value, f"a finite number >= 0 or a {ranks} x {ranks} matrix of them")
    return None


def _links(reader: Reader, ranks: int) -> Links:
    links = reader.child("links")
    pairs = []
    for i, entry in enumerate(links.items("pairs") if links.has("pairs") else []):
        where = f"{links.where}: pairs[{i}]"
        if not (isinstance(entry, list) and len(entry) == 3 and _are_ranks(entry[:2], ranks)):
            links.fail(
                f"{where}: expected [rank, rank, link] with ranks 0..{ranks - 1}, got {show(entry)}"
            )
            continue
        pairs.append((entry[0], entry[1], _link(Reader(entry[2], where, links.errors))))
    return Links(_link(links), tuple(pairs))


def _are_ranks(values: list[Any], ranks: int) -> bool:
    return all(is_count(value) and 0 <= value < ranks for value in values)


def _link(reader: Reader) -> Link:
    latency, bandwidth = reader.number("latency"), reader.number("gigabytes_per_second", 1.0)
    if bandwidth < SLOWEST and "gigabytes_per_second" in reader.data:
        least = f"at least {SLOWEST:g}, a byte a second" if bandwidth else "more than 0"
        reader.wrong("gigabytes_per_second", bandwidth, least)
        bandwidth = 1.0
    return Link(latency, bandwidth)


def per_rank(reader: Reader, key: str, ranks: int) -> tuple[float, ...] | None:
    if not reader.has(key):
        return None
    value = reader.data[key]
    if is_amount(value):
        return (float(value),) * ranks
    if (
        isinstance(value, list)
        and len(value) == ranks
        and all(v is None or is_amount(v) for v in value)
    ):
        return tuple(math.inf if v is None else float(v) for v in value)
    reader.wrong(key, value, f"a finite number >= 0, or a list of {ranks} of them")
    return None


def dump_profile(profile: Profile) -> dict[str, Any]:
    """The profile as a JSON object; parsing it gives an equal profile."""
    document: dict[str, Any] = {"format": PROFILE, "version": 1, "name": profile.name}
    document["stages"] = [_known(asdict(stage)) for stage in profile.stages]
    if profile.num_stages == 1:  # else it would be read as one that all ranks share
        document["num_stages"] = 1
    document["ranks"] = profile.ranks
    if profile.t_comm is not None:
        rows = profile.t_comm
        document["t_comm"] = list(map(list, rows)) if isinstance(rows, tuple) else rows
    if profile.links is not None:
        document["links"] = asdict(profile.links.default) | {
            "pairs": [[a, b, asdict(link)] for a, b, link in profile.links.pairs]
        }
    for key in ("memory_limit", "device_memory"):
        limit = getattr(profile, key)
        if limit is not None:
            document[key] = finite(limit)
    return document


def _known(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def finite(limits: tuple[float, ...]) -> list[float | None]:
    """Memory limits as JSON has them: null where there is none."""
    return [limit if math.isfinite(limit) else None for limit in limits]
