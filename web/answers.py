"""The answers of the routes: the schedule of a row with everything that the page draws, files to
download, and the command and the Python lines that give the same result."""

from __future__ import annotations

import json
from collections.abc import Callable
from shlex import quote
from typing import Any

import numpy as np

from pipeloom.ir.cost.dependency_graph import ScheduleGraph
from pipeloom.ir.formats import dump_program, dump_schedule
from pipeloom.ir.model.ops import FloatArray, IntArray, OpKind
from pipeloom.ir.model.schedule import Schedule
from pipeloom.planner.build import families
from pipeloom.planner.clusters.cluster import CLUSTERS
from pipeloom.planner.clusters.gpus import GPUS
from pipeloom.planner.compile import compile as compiled
from pipeloom.planner.exchange import export
from pipeloom.planner.models.reading import PRESETS
from pipeloom.planner.results.explanation import explain
from pipeloom.planner.results.result import Result
from pipeloom.planner.show import show
from pipeloom.report.bars import memory_curves, timed
from pipeloom.report.colours import NAMES, as_hex, colour, is_light

from .asked import PLACEMENTS
from .solves import Solve


def choices() -> dict[str, Any]:
    """Names of presets and placements, colors of ops, and files to download, for the page."""
    return {
        "models": list(PRESETS),
        "clusters": [*CLUSTERS, *GPUS],
        "placements": PLACEMENTS,
        "kinds": {kind.name: _colours(kind) for kind in OpKind},
        "downloads": {name: words for name, (words, _) in DOWNLOADS.items()},
    }


def _colours(kind: OpKind) -> dict[str, Any]:
    """The name of a kind of op, and its colors from a rank's first stage to its last, each with
    that of text on it."""
    shades = [colour(kind, shade / 15) for shade in range(16)]
    inks = ["#10161c" if is_light(shade) else "#ffffff" for shade in shades]
    return {"name": NAMES[kind], "shades": list(map(as_hex, shades)), "inks": inks}


def detail(solve: Solve, row: Result) -> dict[str, Any]:
    """The schedule of a row as a document, and what the page draws besides.

    ``memory``: for each rank, pairs of a time and the memory held from then on. ``waits``: see
    :func:`waits`. ``explanation``: where each rank's time goes, and why no schedule is cheaper.
    """
    schedule = timed(row.schedule)
    explained = explain(schedule)
    return lines(solve, row) | {
        "schedule": dump_schedule(schedule),
        "memory": [[*map(list, curve)] for curve in memory_curves(schedule)],
        "waits": waits(schedule),
        "explanation": explained.to_dict() | {"words": str(explained)},
    }


def waits(schedule: Schedule) -> dict[str, Any]:
    """For each op, numbered rank after rank, and then for each transfer, the node that it waited
    for longest.

    ``origin``: that node, or -1. ``delay``: milliseconds until its output arrived. ``transfers``:
    the name of each transfer.
    """
    graph = ScheduleGraph.of(schedule)
    timing, sent = schedule.known_timing, schedule.transfers
    end = np.concatenate([*timing.end, timing.transfers[:, 1]])
    origins: IntArray = np.full(len(end), -1)
    delays: FloatArray = np.zeros(len(end))
    origin, to, delay = map(np.concatenate, zip(*graph.all_edges, strict=True))
    by_arrival = np.argsort(end[origin] + delay, kind="stable")  # the last one to arrive stays
    origins[to[by_arrival]] = origin[by_arrival]
    delays[to[by_arrival]] = delay[by_arrival]
    names = [f"{one.kind.value} {one.stage}, {one.source} to {one.target}" for one in sent]
    return {"origin": origins.tolist(), "delay": delays.tolist(), "transfers": names}


def lines(solve: Solve, row: Result) -> dict[str, Any]:
    """The shell commands and the Python lines that give the schedule of a row."""
    count, options = solve.facts["microbatches"], _options(solve, row)
    words = "".join(f" --{key.replace('_', '-')} {quote(str(options[key]))}" for key in options)
    named = "".join(f", {key}={value!r}" for key, value in options.items())
    verb, first = ("optimize", "") if "placement" in options else (f"build {row.name}", row.name)
    call = f'{verb.split()[0]}({repr(first) + ", " if first else ""}"profile.json", {count}{named})'
    return {
        "command": f"pipeloom {verb} profile.json -m {count}{words} -o schedule.json\n"
        "pipeloom compile schedule.json -o program.json",
        "python": f"import pipeloom\n\nfound = pipeloom.{call}\nprogram = pipeloom.compile(found)",
    }


def _options(solve: Solve, row: Result) -> dict[str, Any]:
    """The options of the command that gives the schedule of a row, by name."""
    facts, optimized = solve.facts, row.name not in families()
    limit = row.name if facts["by_limit"] else facts["memory_limit"]
    options = {"memory_limit": limit, "objective": facts["objective"]}
    if optimized:
        placement = row.schedule.problem.placement.name
        options |= {"placement": placement, "time_limit": facts["seconds"]}
    return {key: value for key, value in options.items() if value is not None}


def _json(document: Any) -> bytes:
    return json.dumps(document, allow_nan=False).encode()


def _exported(to: str) -> Callable[[Solve, Schedule], bytes]:
    return lambda _, schedule: export(schedule, to).text.encode()


DOWNLOADS: dict[str, tuple[str, Callable[[Solve, Schedule], bytes]]] = {
    "profile.json": ("Profile", lambda solve, _: _json(solve.given)),
    "schedule.json": ("Schedule", lambda _, found: _json(dump_schedule(found))),
    "program.json": ("Program", lambda _, found: _json(dump_program(compiled(found)))),
    "schedule.svg": ("SVG", lambda _, found: show(found, kind="svg", memory=True).data),
    "torch.csv": ("torch CSV", _exported("torch-csv")),
    "torchtitan.csv": ("torchtitan CSV", _exported("torchtitan")),
    "torchtitan.toml": ("torchtitan TOML", _exported("torchtitan-toml")),
    "megatron.txt": ("Megatron layout", _exported("megatron-layout")),
}
"""The files that can be downloaded, by name: what each is, and the function that makes it, which
raises InputError if the format cannot express the schedule."""
