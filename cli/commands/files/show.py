"""Draws schedules and programs in the terminal, or as SVG, HTML, PNG or a Chrome trace.

Several files, such as a planned and a measured schedule, are drawn below each other with one time
scale. --measured also lists where each rank's time went.

example:
  pipeloom show schedule.json
  pipeloom show schedule.json --memory -o schedule.svg
  pipeloom show program.json --measured measured.json -o both.svg
  pipeloom show a.json b.json --title '12 GB' --title '16 GB' -o two.svg
  pipeloom build zb-h1 profile.json -m 8 | pipeloom show - --as svg > schedule.svg
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeloom.planner.inputs.documents import PICTURES
from pipeloom.planner.requests.fields import option, place
from pipeloom.planner.requests.kinds import TEXT, choice, whole

from ...arguments import Command
from ...output import check_apart, print_json, say_words
from ...progress import ProgressDisplay


@dataclass(frozen=True, kw_only=True)
class ShowCommand(Command):
    """The command ``pipeloom show``: calls :func:`pipeloom.show`, and prints or writes the
    picture."""

    files: Sequence[str] = field(metadata=place("FILE", "+"))
    """schedule or program file, - for standard input"""
    output: str = option("FILE", default="-", names=("-o", "--output"))
    """file to draw to; its extension gives the kind of picture: .svg, .html, .png, .trace.json,
    .txt; the terminal by default"""
    measured: str | None = option("TRACE")
    """file written by run --trace for the same schedule: also draw it, below the planned one, and
    list where each rank's time went"""
    memory: bool = option(default=False)
    """draw the memory of each rank over time below each timeline"""
    kind: str | None = option(kind=choice(*PICTURES.values()), names=("--as",))
    """kind of picture, instead of that given by the extension"""
    titles: Sequence[str] | None = option("TEXT", TEXT, names=("--title",), action="append")
    """title above a schedule; once for each file, in order"""
    colour: str = option(
        kind=choice("auto", "always", "never"), default="auto", names=("--colour", "--color")
    )
    """colors in the terminal; auto uses them unless NO_COLOR is set"""
    columns: int | None = option("N", whole(20, 10_000))
    """width of the picture in the terminal"""

    def run(self) -> int:
        from pipeloom.ir.formats.atomic_write import write_bytes
        from pipeloom.planner.show import show

        to_stdout = self.output == "-"
        if not to_stdout:
            check_apart(self, "output", self.output)
        drawn = {key: getattr(self, key) for key in ("measured", "memory", "kind", "titles")}
        picture = show(
            *self.files,
            **drawn,
            output=None if to_stdout else self.output,
            columns=self.columns or shutil.get_terminal_size((120, 24)).columns,
            colours=self._coloured(),
            progress=ProgressDisplay(),
        )
        if to_stdout and not self.json:
            write_bytes(picture.data, "-")
        if self.json:
            print_json({"output": None if to_stdout else self.output} | picture.to_dict())
            return 0
        if picture.attribution is not None:
            say_words(("\n" if to_stdout else "") + str(picture.attribution))
        if not to_stdout:
            say_words(f"written to {self.output}")
        return 0

    def _coloured(self) -> bool:
        on_terminal = self.output == "-" and sys.stdout.isatty()
        return self.colour == "always" or (
            self.colour == "auto" and on_terminal and not os.environ.get("NO_COLOR")
        )
