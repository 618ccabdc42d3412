"""The answers of the routes: names to choose from, files to download, and the command and the
Python lines that give the same result."""

from __future__ import annotations

import json
from collections.abc import Callable
from shlex import quote
from typing import Any

from pipeloom.ir.formats import dump_program, dump_schedule
from pipeloom.ir.model.schedule import Schedule
from pipeloom.planner.build import families
from pipeloom.planner.clusters.cluster import CLUSTERS
from pipeloom.planner.clusters.gpus import GPUS
from pipeloom.planner.compile import compile as compiled
from pipeloom.planner.exchange import export
from pipeloom.planner.models.reading import PRESETS
from pipeloom.planner.results.result import Result
from pipeloom.planner.show import show
from pipeloom.report.page import op_colours

from .asked import PLACEMENTS
from .solves import Solve


def choices() -> dict[str, Any]:
    """Names of presets and placements, colors of ops, and files to download, for the page."""
    return {
        "models": list(PRESETS),
        "clusters": [*CLUSTERS, *GPUS],
        "placements": PLACEMENTS,
        "kinds": op_colours(),
        "downloads": {name: words for name, (words, _) in DOWNLOADS.items()},
    }


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
