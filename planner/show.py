"""``show``: pictures of schedules, and where a run lost time in comparison with its plan."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pipeloom.ir.errors import InfeasibleError, InputError, printable
from pipeloom.ir.formats import dump_schedule
from pipeloom.ir.formats.atomic_write import write_bytes
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.report.attribution import Attribution, attribute
from pipeloom.report.bars import last, memory_scale, timed
from pipeloom.report.chrome_trace import trace_events
from pipeloom.report.page import drawn, op_colours, page_text
from pipeloom.report.summaries import called, caption, describe
from pipeloom.report.svg.timeline import timeline_svg
from pipeloom.report.timeline_text import timeline_text

from .inputs.documents import PICTURES, Document, Planned, naming, read_document, read_schedule
from .inputs.words import check_choice
from .measured.samples import is_plan
from .solving.progress import Listener, Note, unheard
from .verify import bound_is_checked, schedule_in

STUCK = "can never run: "
"""Prefix of the verifier's violation for a schedule that deadlocks."""
# commands that read an SVG from standard input and write a PNG to standard output
CONVERTERS = (
    ("rsvg-convert", "--format=png", "--zoom=2"),
    ("inkscape", "--pipe", "--export-type=png", "--export-filename=-"),
)
Drawable = Schedule | Planned | Document


@dataclass(frozen=True)
class Picture:
    """A picture of schedules, one below the other on one time scale, each with a name or None.

    ``kind``: one of the values of :data:`.inputs.documents.PICTURES`. ``attribution``: where the
    time of a measured schedule went; None if none was measured. ``memory``: whether memory over
    time is shown. ``columns``: width in characters; ``colours``: whether text is colored; both only
    apply to text.
    """

    kind: str
    schedules: tuple[tuple[str | None, Schedule], ...]
    attribution: Attribution | None = None
    memory: bool = False
    columns: int = 120
    colours: bool = False

    @cached_property
    def data(self) -> bytes:
        """The bytes of the picture's file. Raises InputError if it cannot be drawn."""
        if self.kind == "text":
            return self._text().encode()
        if self.kind == "html":
            return page_text(self._inside()).encode()
        if self.kind == "trace":
            return json.dumps(trace_events(self.schedules)).encode()
        svg = timeline_svg(self.schedules, memory=self.memory).encode()
        return svg if self.kind == "svg" else _png(svg)

    def _text(self) -> str:
        memory = memory_scale(timed(each) for _, each in self.schedules) if self.memory else None
        axis: dict[str, Any] = {"columns": self.columns, "memory": memory}
        axis["end"] = max(last(timed(each)) for _, each in self.schedules)
        return "\n".join(
            timeline_text(schedule, name=name, colours=self.colours, **axis)
            for name, schedule in self.schedules
        )

    def _inside(self) -> dict[str, Any]:
        """The JSON object inside an HTML page. Names that several schedules have are numbered."""
        names = [name or called(each) for name, each in self.schedules]
        rows = [
            {"name": name if names.count(name) == 1 else f"{name} ({number})"} | detail(each)
            for number, (name, (_, each)) in enumerate(zip(names, self.schedules, strict=True), 1)
        ]
        return {"kinds": op_colours(), "rows": rows}

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``show --json`` prints, without the file's name."""
        shown = [
            {"title": caption(name, each)} | describe(dump_schedule(each))
            for name, each in self.schedules
        ]
        if self.attribution is None:
            return {"schedules": shown}
        return {"schedules": shown, "attribution": self.attribution.to_dict()}

    def __str__(self) -> str:
        return self._text()


def show(
    *drawn: Drawable,
    output: str | os.PathLike[str] | None = None,
    measured: Drawable | None = None,
    memory: bool = False,
    kind: str | None = None,
    titles: Sequence[str] | None = None,
    columns: int = 120,
    colours: bool = False,
    progress: Listener | None = None,
) -> Picture:
    """Draw schedules, or the schedules of programs, given as objects, JSON objects or files.

    ``output``: the file to write, if any. ``kind``: the kind of picture; by default, it is given by
    the ending of ``output``: ``.svg``, ``.html``, ``.png``, ``.trace.json`` or ``.txt``; without
    ``output``, it is text. ``measured``: the trace that ``run --trace`` wrote for the one schedule
    drawn. ``memory``: whether to show memory over time. ``titles``: one for each schedule.
    ``columns``: width of text in characters. ``colours``: whether to color text. ``progress``
    receives notes on files that are not valid.

    Raises InputError for invalid input.
    """
    kind = kind or _kind(output)
    check_choice("kind", kind, *PICTURES.values())
    if not drawn:
        raise InputError("files: expected a schedule or a program, got none")
    schedules = _named(drawn, measured, titles, progress or unheard)
    found = None if measured is None else _attributed(measured, schedules)
    picture = Picture(kind, schedules, found, memory, columns, colours)
    if output is not None:
        write_bytes(picture.data, os.fspath(output))
    return picture


def detail(schedule: Schedule) -> dict[str, Any]:
    """Return what the page draws of a schedule, by :func:`pipeloom.report.page.drawn`.

    Unless its times are measured, the result also explains where each rank's time goes and why no
    schedule is cheaper; there is no explanation if a memory limit has no room for a microbatch.
    """
    from .results.explanation import explain

    found = drawn(schedule)
    if schedule.timing is None or is_plan(schedule):
        with suppress(InfeasibleError):
            explained = explain(schedule)
            found["explanation"] = explained.to_dict() | {"words": str(explained)}
    return found


def _named(
    drawn: Sequence[Drawable],
    measured: Drawable | None,
    titles: Sequence[str] | None,
    tell: Listener,
) -> tuple[tuple[str | None, Schedule], ...]:
    """Return all schedules, the measured one last, each with its title: one of ``titles`` if they
    are given, else "planned" or "measured" if there is a measured one, else None."""
    if measured is not None and len(drawn) != 1:
        raise InputError(f"files: expected one with --measured, got {len(drawn)}")
    given = [*drawn, *([] if measured is None else [measured])]
    if sum(one == "-" for one in given if isinstance(one, str)) > 1:
        raise InputError("files: expected - once at most: there is one standard input")
    if titles and len(titles) != len(given):
        raise InputError(f"titles: expected one for each of {len(given)} files, got {len(titles)}")
    names: Sequence[str | None] = titles or (
        ["planned", "measured"] if measured is not None else [None] * len(given)
    )
    return tuple(
        (name and printable(name), _read(one, tell)) for name, one in zip(names, given, strict=True)
    )


def _read(given: Drawable, tell: Listener) -> Schedule:
    """Return the schedule. If it is from a file or JSON object, its first fault is reported to
    ``tell`` as a note."""
    if isinstance(given, Schedule | Planned):
        return read_schedule(given)[0]
    document, where = read_document(given, "schedule")
    schedule, _ = read_schedule(document, compiled=True, where=where)
    fault = _fault(schedule_in(document), schedule)
    if fault is not None:
        tell(Note(f"note: {where}: {fault}"))
    return schedule


def _fault(document: dict[str, Any], schedule: Schedule) -> str | None:
    """Return the first violation in words, or a remark that the lower bound is not checked; None if
    there is neither."""
    try:
        violations = verify_schedule(document)
    except InputError as error:
        return f"not valid: {error.lines[0]}"
    bound = None if schedule.report is None else schedule.report.lower_bound
    stuck = [line for line in violations if line.startswith(STUCK)]
    measured = bound is None and not is_plan(schedule)  # such times differ from the profile's
    if stuck:
        return f"{stuck[0]}; drawn by the times in the file"
    if violations and not measured:
        return f"not valid: {violations[0]}; drawn by the times in the file"
    if not violations and bound_is_checked(schedule) is False:
        return "its lower bound is not checked, but taken from the file"
    return None


def _attributed(
    measured: Drawable, schedules: Sequence[tuple[str | None, Schedule]]
) -> Attribution:
    (_, planned), (_, ran) = schedules
    where = os.fspath(measured) if isinstance(measured, str | os.PathLike) else "schedule"
    if is_plan(ran):
        raise InputError(f"{where}: expected times that `run --trace` measured, got a plan's")
    with naming(where):
        return attribute(planned, ran)


def _kind(output: str | os.PathLike[str] | None) -> str:
    if output in {None, "-"}:
        return "text"
    name = os.fspath(output or "")
    for extension, kind in PICTURES.items():
        if name.endswith(extension):
            return kind
    raise InputError(f"output: expected a name that ends in {', '.join(PICTURES)}, got {name!r}")


def _png(svg: bytes) -> bytes:
    for name, *options in CONVERTERS:
        program = shutil.which(name)
        if program is None:
            continue
        done = subprocess.run([program, *options], input=svg, capture_output=True, check=False)
        if done.returncode == 0 and done.stdout:
            return done.stdout
    names = " or ".join(name for name, *_ in CONVERTERS)
    raise InputError(f"output: PNG needs {names} on the PATH; write .svg instead")
