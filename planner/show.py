"""``show``: schedules as pictures, and what a run took beyond its plan."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeloom.ir.cost.dependency_graph import ScheduleGraph
from pipeloom.ir.errors import InputError, InvalidScheduleError, printable
from pipeloom.ir.formats import dump_schedule
from pipeloom.ir.formats.atomic_write import write_bytes
from pipeloom.ir.model.schedule import Schedule
from pipeloom.report import plan_vs_measured
from pipeloom.report.attribution import Attribution, attribute
from pipeloom.report.chrome_trace import trace_events
from pipeloom.report.summaries import describe
from pipeloom.report.svg.timeline import timeline_svg
from pipeloom.report.timeline_html import timeline_html
from pipeloom.report.timeline_text import timeline_text

from .inputs.documents import PICTURES, Document, Planned, naming, read_schedule
from .inputs.problem_setup import check_choice
from .measured.samples import is_plan
from .solving.progress import Listener, Note, unheard
from .verify import bound_is_checked

MOST_OF_CIRCLE = 4
"""Ops that are named of those that wait for each other in a circle."""
# programs that turn an SVG on standard input into a PNG on standard output
CONVERTERS = (
    ("rsvg-convert", "--format=png", "--zoom=2"),
    ("inkscape", "--pipe", "--export-type=png", "--export-filename=-"),
)
Drawable = Schedule | Planned | Document


@dataclass(frozen=True)
class Picture:
    """Schedules under each other on one time scale, each with its title, as a picture of ``kind``.

    ``attribution``: where a measured one's time went; None where none was measured. ``titled``,
    ``columns`` and ``colours`` are of pictures of text.
    """

    kind: str
    schedules: tuple[tuple[str, Schedule], ...]
    attribution: Attribution | None = None
    titled: bool = True
    columns: int = 120
    colours: bool = False

    @cached_property
    def data(self) -> bytes:
        """The content of the picture's file. Raises InputError where it cannot be drawn."""
        if self.kind == "text":
            return self._text().encode()
        if self.kind == "html":
            return timeline_html(list(self.schedules)).encode()
        if self.kind == "trace":
            return json.dumps(trace_events(self.schedules)).encode()
        svg = timeline_svg(list(self.schedules)).encode()
        return svg if self.kind == "svg" else _png(svg)

    def _text(self) -> str:
        return "\n".join(
            timeline_text(
                schedule,
                title=title if self.titled else None,
                columns=self.columns,
                colours=self.colours,
            )
            for title, schedule in self.schedules
        )

    def to_dict(self) -> dict[str, Any]:
        """The object that ``show --json`` prints, but for the file's name."""
        shown = [{"name": name} | describe(dump_schedule(each)) for name, each in self.schedules]
        if self.attribution is None:
            return {"schedules": shown}
        return {"schedules": shown, "attribution": plan_vs_measured.as_json(self.attribution)}

    def __str__(self) -> str:
        return self._text()


def show(
    *drawn: Drawable,
    output: str | os.PathLike[str] | None = None,
    measured: Drawable | None = None,
    kind: str | None = None,
    titles: Sequence[str] | None = None,
    columns: int = 120,
    colours: bool = False,
    progress: Listener | None = None,
) -> Picture:
    """A picture of schedules or of programs' schedules: objects, JSON objects or files.

    It is written to ``output``, if that is given, as the ``kind`` that its name ends in: ``.svg``,
    ``.html``, ``.png``, ``.trace.json``, ``.txt``; text by default. ``measured``: what
    ``run --trace`` wrote of the one schedule drawn. ``titles``: one for each. ``progress`` is told
    of schedules that can never run.

    Raises InputError for wrong input.
    """
    kind = kind or _kind(output)
    check_choice("kind", kind, *PICTURES.values())
    if not drawn:
        raise InputError("files: expected a schedule or a program, got none")
    schedules = _titled(drawn, measured, titles)
    for given, (_, schedule) in zip(drawn, schedules, strict=False):
        _tell_stuck(given, schedule, progress or unheard)
        _tell_unchecked(given, schedule, progress or unheard)
    found = None if measured is None else _attributed(measured, schedules)
    titled = bool(titles) or measured is not None
    picture = Picture(kind, schedules, found, titled, columns, colours)
    if output is not None:
        write_bytes(picture.data, os.fspath(output))
    return picture


def _titled(
    drawn: Sequence[Drawable], measured: Drawable | None, titles: Sequence[str] | None
) -> tuple[tuple[str, Schedule], ...]:
    """The schedules of all files, each with its title."""
    if measured is not None and len(drawn) != 1:
        raise InputError(f"files: expected one beside --measured, got {len(drawn)}")
    given = [*drawn, *([] if measured is None else [measured])]
    if sum(one == "-" for one in given if isinstance(one, str)) > 1:
        raise InputError("files: expected - once at most: there is one standard input")
    names = titles or (["planned", "measured"] if measured is not None else map(_title, given))
    found = list(map(printable, names))
    if len(found) != len(given):
        raise InputError(f"titles: expected one for each of {len(given)} files, got {len(found)}")
    return tuple(
        (title, read_schedule(one, compiled=True)[0])
        for title, one in zip(found, given, strict=True)
    )


def _title(given: Drawable) -> str:
    if isinstance(given, str | os.PathLike) and given != "-":
        return Path(given).stem
    return "schedule"


def _called(given: Drawable) -> str:
    """How messages call what is drawn."""
    if given == "-":
        return "standard input"
    return os.fspath(given) if isinstance(given, str | os.PathLike) else "schedule"


def _tell_stuck(given: Drawable, schedule: Schedule, tell: Listener) -> None:
    """Says of a schedule that can never run that its picture is of the times in the file."""
    try:
        ops = ScheduleGraph.of(schedule).cycle()
    except InvalidScheduleError as error:
        reason = error.violations[0]
    else:
        more = f", and so on, {len(ops) - 1} in a circle" if len(ops) > MOST_OF_CIRCLE else ""
        reason = " waits for ".join(ops[:MOST_OF_CIRCLE]) + more
    if reason:
        end = "drawn by the times in the file"
        tell(Note(f"note: {_called(given)}: can never run: {reason}; {end}"))


def _tell_unchecked(given: Drawable, schedule: Schedule, tell: Listener) -> None:
    """Says of a file that claims a bound which none in closed form reaches that it is a claim."""
    if isinstance(given, str | os.PathLike | Mapping) and bound_is_checked(schedule) is False:
        words = "its lower bound is not checked, but taken from the file"
        tell(Note(f"note: {_called(given)}: {words}"))


def _attributed(measured: Drawable, schedules: Sequence[tuple[str, Schedule]]) -> Attribution:
    (_, planned), (_, ran) = schedules
    where = _called(measured)
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
