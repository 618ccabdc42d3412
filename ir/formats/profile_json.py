"""Profiles as JSON: reading with every error of the file at once, and writing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from ..errors import InputError
from ..model.links import Groups, Link, Links, Sharing
from ..model.profile import DataParallel, Profile, StageProfile
from .json_reader import Reader, is_amount, is_count, is_matrix, read_json, show
from .layer_json import NAME_KEYS, dump_layer, read_names

PROFILE = "pipeloom.profile"
_TIMES = ("t_f", "t_b", "t_w")
# larger ones are mistakes, and arrays of that size would exhaust memory
MOST_RANKS, MOST_STAGES = 4096, 65_536
SLOWEST = 1e-9  # gigabytes a second
MOST_AMOUNT = 1e80  # what millions of ops and delays sum up to is still a number for a schedule
_SIZES = ("activation_bytes", "weight_bytes", "grad_bytes", "optimizer_bytes")
COST_KEYS = (*_TIMES, "t_fb", "m_b", "m_w", *_SIZES)
_LEVERS = ("t_bw", "t_r", "m_r", "m_o", "offload_bytes")
_STAGE_KEYS = (*COST_KEYS, *_LEVERS, "layers")
LAYER_KEYS = (*COST_KEYS, *_LEVERS, *NAME_KEYS, "repeat", "with_next")
_LINK_KEYS = ("latency", "gigabytes_per_second")
_REPLICAS_KEYS = ("size", *_LINK_KEYS)
_LINKS_KEYS = (*_LINK_KEYS, "pairs", "shared")
_KEYS = (
    "format", "version", "name", "stages", "num_stages", "ranks", "t_comm", "links",
    "memory_limit", "device_memory", "host_link", "data_parallel", "layers", "tied",
)  # fmt: skip


def load_profile(path: str) -> Profile:
    """Reads a profile. Raises InputError with every error of the file."""
    return parse_profile(read_json(path), path)


def parse_profile(data: dict[str, Any], where: str) -> Profile:
    errors: list[str] = []
    profile = read_profile(Reader(data, where, errors, _KEYS))
    if errors:
        raise InputError(*errors)
    return profile


def doubtful_keys(data: dict[str, Any], where: str) -> list[str]:
    """A line for each key of a profile that is not known but much like one that is.

    Such keys are no fault: other programs may put their own into a profile.
    """
    lines: dict[str, str] = {}
    for reader in _objects(data, where):
        for key, meant in reader.misspelt():  # of many alike the first is named
            lines.setdefault(
                key, f"{reader.where}: {key}: unknown key, not used; did you mean {meant}?"
            )
    return list(lines.values())


def _objects(data: dict[str, Any], where: str) -> Iterator[Reader]:
    """The objects that a profile which can be read is made of."""
    yield Reader(data, where, [], _KEYS)
    for s, entry in enumerate(data.get("stages") or []):
        yield Reader(entry, f"{where}: stages[{s}]", [], _STAGE_KEYS)
    for i, entry in enumerate((data.get("layers") or []) if "stages" not in data else []):
        yield Reader(entry, f"{where}: layers[{i}]", [], LAYER_KEYS)
    if data.get("host_link") is not None:
        yield Reader(data["host_link"], f"{where}: host_link", [], _LINK_KEYS)
    if data.get("data_parallel") is not None:
        yield Reader(data["data_parallel"], f"{where}: data_parallel", [], _REPLICAS_KEYS)
    links = data.get("links")
    if links is not None:
        yield Reader(links, f"{where}: links", [], _LINKS_KEYS)
        for i, entry in enumerate(links.get("pairs") or []):
            yield Reader(entry[2], f"{where}: links: pairs[{i}]", [], _LINK_KEYS)


def read_profile(reader: Reader) -> Profile:
    reader.known = _KEYS
    reader.format(PROFILE)
    return _read(reader, _stages)


def read_cluster(reader: Reader) -> Profile:
    """All that a profile says but its stages, of which it has none then."""
    reader.known = _KEYS
    reader.format(PROFILE)
    return _read(reader, lambda _, __: ())


def _read(reader: Reader, stages: Callable[[Reader, int], tuple[StageProfile, ...]]) -> Profile:
    faults = len(reader.errors)
    ranks = reader.count("ranks", least=1, most=MOST_RANKS)
    # where their number is wrong, what counts on it is not to blame
    known = ranks if len(reader.errors) == faults else None
    found = stages(reader, ranks)
    return Profile(
        stages=found,
        ranks=ranks,
        t_comm=_t_comm(reader, known),
        links=_links(reader, known) if reader.has("links") else None,
        memory_limit=per_rank(reader, "memory_limit", known),
        device_memory=per_rank(reader, "device_memory", known),
        name=reader.text("name") if reader.has("name") else "",
        host_link=(
            _link(reader.child("host_link", _LINK_KEYS), 0.0) if reader.has("host_link") else None
        ),
        data_parallel=_data_parallel(reader) if reader.has("data_parallel") else None,
        tied=read_tied(reader, _places(found), f"stages of 0..{len(found) - 1}") if found else (),
    )


def _places(stages: tuple[StageProfile, ...]) -> dict[int | str, int]:
    """The stages by number, and by each layer that they name."""
    places: dict[int | str, int] = {s: s for s in range(len(stages))}
    return places | {layer.name: s for s, stage in enumerate(stages) for layer in stage.layers}


def read_tied(reader: Reader, places: Mapping[Any, int], what: str) -> tuple[tuple[int, ...], ...]:
    """The groups of ``what`` that share parameters; ``places``: of each by what it may be
    called."""
    groups: list[tuple[int, ...]] = []
    for i, entry in enumerate(reader.items("tied") if reader.has("tied") else []):
        members = entry if isinstance(entry, list) else []
        known = all(type(member) in (int, str) and member in places for member in members)
        if not known or len(members) < 2 or len(set(members)) < len(members):
            reader.wrong(f"tied[{i}]", entry, f"two or more different {what}")
            continue
        group = tuple(sorted({places[member] for member in members}))
        if group in groups:
            reader.wrong(f"tied[{i}]", entry, "each group once")
        elif len(group) > 1:  # else layers of one stage
            groups.append(group)
    return tuple(sorted(groups))


def _stages(reader: Reader, ranks: int) -> tuple[StageProfile, ...]:
    if "stages" not in reader.data and reader.has("layers"):
        reader.fail(
            f"{reader.where}: stages: missing; expected a list (it has layers, which optimize and "
            "build cut)"
        )
        return ()
    entries = reader.items("stages")
    stages = tuple(
        read_stage(Reader(entry, f"{reader.where}: stages[{s}]", reader.errors, _STAGE_KEYS))
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


def read_stage(reader: Reader) -> StageProfile:
    t_f, t_b, t_w = (_amount(reader, key) for key in _TIMES)
    m_b, m_w = _amount(reader, "m_b", 1.0), _amount(reader, "m_w")
    if m_w > m_b:
        reader.wrong("m_w", m_w, f"at most m_b ({m_b:g})")
    if reader.has("t_r") != reader.has("m_r"):
        given, absent = ("t_r", "m_r") if reader.has("t_r") else ("m_r", "t_r")
        reader.fail(f"{reader.where}: {absent}: missing; expected it beside {given}")
    keys = (*_SIZES, "t_fb", *_LEVERS)
    sizes = {key: _amount(reader, key) if reader.has(key) else None for key in keys}
    for key in ("m_r", "m_o"):
        kept = sizes[key]
        if kept is not None and kept > m_b:
            reader.wrong(key, kept, f"at most m_b ({m_b:g})")
    layers = read_names(reader) if reader.has("layers") else ()
    return StageProfile(t_f, t_b, t_w, m_b, m_w, **sizes, layers=layers)


def _amount(reader: Reader, key: str, default: float = 0.0) -> float:
    value = reader.number(key, default)
    if value > MOST_AMOUNT:
        reader.wrong(key, value, f"at most {MOST_AMOUNT:g}")
    return value


def _t_comm(reader: Reader, ranks: int | None) -> float | tuple[tuple[float, ...], ...] | None:
    if not reader.has("t_comm"):
        return None
    value = reader.data["t_comm"]
    if is_amount(value):
        return _amount(reader, "t_comm")
    if ranks is None and isinstance(value, list):
        return None
    if ranks is not None and is_matrix(value, ranks):
        if max(map(max, value)) > MOST_AMOUNT:
            reader.wrong("t_comm", max(map(max, value)), f"at most {MOST_AMOUNT:g} each")
        return tuple(tuple(map(float, row)) for row in value)
    size = ranks or "P"
    reader.wrong("t_comm", value, f"a finite number >= 0 or a {size} x {size} matrix of them")
    return None


def _links(reader: Reader, ranks: int | None) -> Links:
    """``latency`` is 0 where it is absent, and in a pair that of the other links."""
    links = reader.child("links", _LINKS_KEYS)
    common = _link(links, 0.0)
    pairs = []
    for i, entry in enumerate(links.items("pairs") if links.has("pairs") else []):
        where = f"{links.where}: pairs[{i}]"
        if not (isinstance(entry, list) and len(entry) == 3 and _are_ranks(entry[:2], ranks)):
            given = "" if ranks is None else f" with ranks 0..{ranks - 1}"
            links.fail(f"{where}: expected [rank, rank, link]{given}, got {show(entry)}")
            continue
        link = _link(Reader(entry[2], where, links.errors, _LINK_KEYS), common.latency)
        pairs.append((entry[0], entry[1], link))
    return Links(common, tuple(pairs), _shared(links, ranks))


def _shared(links: Reader, ranks: int | None) -> Sharing | Groups:
    if not links.has("shared"):
        return Sharing.PAIRS
    value, names = links.data["shared"], [kind.value for kind in Sharing]
    if value in names:
        return Sharing(value)
    if not isinstance(value, list):
        links.wrong("shared", value, f"{', '.join(names)} or a list of groups of pairs")
        return Sharing.PAIRS
    return tuple(_group(links, k, group, ranks) for k, group in enumerate(value))


def _group(links: Reader, k: int, group: Any, ranks: int | None) -> tuple[tuple[int, int], ...]:
    """The pairs of ranks, sender first, that share one wire."""
    given = "" if ranks is None else f" from 0 to {ranks - 1}"
    if not isinstance(group, list):
        links.wrong(f"shared[{k}]", group, "a list of pairs [from rank, to rank]")
        return ()
    for i, pair in enumerate(group):
        sound = isinstance(pair, list) and len(pair) == 2 and _are_ranks(pair, ranks)
        if not sound or pair[0] == pair[1]:
            links.wrong(f"shared[{k}][{i}]", pair, f"[rank, another rank]{given}")
            return ()
    return tuple((a, b) for a, b in group)


def _data_parallel(reader: Reader) -> DataParallel:
    replicas = reader.child("data_parallel", _REPLICAS_KEYS)
    return DataParallel(replicas.count("size", least=1, most=MOST_RANKS), _link(replicas, 0.0))


def _are_ranks(values: list[Any], ranks: int | None) -> bool:
    return all(is_count(value) and 0 <= value < (ranks or MOST_RANKS) for value in values)


def _link(reader: Reader, latency: float) -> Link:
    if reader.has("latency"):
        latency = _amount(reader, "latency")
    bandwidth = reader.number("gigabytes_per_second", 1.0)
    if bandwidth < SLOWEST and "gigabytes_per_second" in reader.data:
        least = f"at least {SLOWEST:g}, a byte a second" if bandwidth else "more than 0"
        reader.wrong("gigabytes_per_second", bandwidth, least)
        bandwidth = 1.0
    return Link(latency, bandwidth)


def per_rank(reader: Reader, key: str, ranks: int | None) -> tuple[float, ...] | None:
    if not reader.has(key):
        return None
    value = reader.data[key]
    if is_amount(value):
        return (float(value),) * (ranks or 1)
    if ranks is None and isinstance(value, list):
        return None
    if (
        isinstance(value, list)
        and len(value) == ranks
        and all(v is None or is_amount(v) for v in value)
    ):
        return tuple(math.inf if v is None else float(v) for v in value)
    reader.wrong(key, value, f"a finite number >= 0, or a list of {ranks or 'P'} of them")
    return None


def dump_profile(profile: Profile) -> dict[str, Any]:
    """The profile as a JSON object; parsing it gives an equal profile."""
    document: dict[str, Any] = {"format": PROFILE, "version": 1, "name": profile.name}
    document["stages"] = [_dump_stage(stage) for stage in profile.stages]
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
        if profile.links.shared is not Sharing.PAIRS:
            document["links"]["shared"] = _dump_shared(profile.links.shared)
    if profile.host_link is not None:
        document["host_link"] = asdict(profile.host_link)
    if profile.data_parallel is not None:
        over = profile.data_parallel
        document["data_parallel"] = {"size": over.size, **asdict(over.link)}
    if profile.tied:
        document["tied"] = [list(group) for group in profile.tied]
    for key in ("memory_limit", "device_memory"):
        limit = getattr(profile, key)
        if limit is not None:
            document[key] = finite(limit)
    return document


def _dump_shared(shared: Sharing | Groups) -> Any:
    if isinstance(shared, Sharing):
        return shared.value
    return [[list(pair) for pair in group] for group in shared]


def _dump_stage(stage: StageProfile) -> dict[str, Any]:
    values = {key: getattr(stage, key) for key in (*COST_KEYS, *_LEVERS)}
    known = {key: value for key, value in values.items() if value is not None}
    return known | ({"layers": list(map(dump_layer, stage.layers))} if stage.layers else {})


def finite(limits: tuple[float, ...]) -> list[float | None]:
    """Memory limits as JSON has them: null where there is none."""
    return [limit if math.isfinite(limit) else None for limit in limits]
