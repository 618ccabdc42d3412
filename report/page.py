"""The page on which schedules are explored, and what it draws of each.

``pipeloom serve`` sends it without schedules. ``pipeloom show -o x.html`` writes it with schedules
inside: such a page needs no server.
"""

from __future__ import annotations

import json
from contextlib import suppress
from importlib.resources import files
from typing import Any

import numpy as np

from pipeloom.ir.cost.dependency_graph import ScheduleGraph
from pipeloom.ir.errors import InvalidScheduleError
from pipeloom.ir.formats import dump_schedule
from pipeloom.ir.model.ops import FloatArray, IntArray, OpKind
from pipeloom.ir.model.schedule import Schedule

from .bars import memory_curves, timed
from .colours import NAMES, as_hex, colour, is_light


def page_text(inside: dict[str, Any]) -> str:
    """The page as one text, with its style and its script.

    ``inside``: the JSON object that its script reads. The key ``kinds`` has the colors by
    :func:`op_colours`. If there is a key ``rows``, the page needs no server: it shows the schedules
    there. Otherwise, the other keys are the choices of the form.
    """
    folder = files(__package__) / "page"
    names = ("index.html", "page.css", "page.js")
    page, style, script = ((folder / name).read_text(encoding="utf-8") for name in names)
    data = json.dumps(inside, allow_nan=False).replace("<", "\\u003c")
    page = page.replace("/*page.css*/", style).replace("/*page.js*/", script)
    return page.replace("/*inside*/", data)


def op_colours() -> dict[str, dict[str, Any]]:
    """The name of each kind of op, and its colors from a rank's first stage to its last, each with
    that of text on it."""
    found = {}
    for kind in OpKind:
        shades = [colour(kind, shade / 15) for shade in range(16)]
        inks = ["#10161c" if is_light(shade) else "#ffffff" for shade in shades]
        found[kind.name] = {"name": NAMES[kind], "shades": list(map(as_hex, shades)), "inks": inks}
    return found


def drawn(schedule: Schedule) -> dict[str, Any]:
    """The schedule as a document, and what the page draws besides.

    ``memory``: for each rank, pairs of a time and the memory held from then on. ``waits``: see
    :func:`waits`.
    """
    schedule = timed(schedule)
    memory = [[*map(list, curve)] for curve in memory_curves(schedule)]
    return {"schedule": dump_schedule(schedule), "memory": memory, "waits": waits(schedule)}


def waits(schedule: Schedule) -> dict[str, Any]:
    """For each op, numbered rank after rank, and then for each transfer, the node that it waited
    for longest.

    ``origin``: that node, or -1. ``delay``: milliseconds until its output arrived. ``transfers``:
    the name of each transfer.
    """
    timing, sent = schedule.known_timing, schedule.transfers
    end = np.concatenate([*timing.end, timing.transfers[:, 1]])
    origins: IntArray = np.full(len(end), -1)
    delays: FloatArray = np.zeros(len(end))
    with suppress(InvalidScheduleError):  # ops are missing: nothing is known of waits
        edges = ScheduleGraph.of(schedule).all_edges
        origin, to, delay = map(np.concatenate, zip(*edges, strict=True))
        by_arrival = np.argsort(end[origin] + delay, kind="stable")  # the last one to arrive stays
        origins[to[by_arrival]] = origin[by_arrival]
        delays[to[by_arrival]] = delay[by_arrival]
    names = [f"{one.kind.value} {one.stage}, {one.source} to {one.target}" for one in sent]
    return {"origin": origins.tolist(), "delay": delays.tolist(), "transfers": names}
