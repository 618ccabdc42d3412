"""Builds the schedule of a named family for a profile.

example:
  pipeloom build --list
  pipeloom build zb-h1 profile.json -m 24 -o schedule.json
  pipeloom build 1f1b profile.json -m 24 | pipeloom show -
  pipeloom build zb-v layers.json -m 24 --partition even -o schedule.json
  pipeloom build weipipe-interleave profile.json -m 8 --replicate 0,3 -o schedule.json
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pipeloom.ir.errors import InputError
from pipeloom.planner.requests.fields import option, place
from pipeloom.planner.requests.search import BuildRequest
from pipeloom.report.text_table import table

from ...arguments import WritingCommand
from ...inputs import read_profile
from ...output import answer, check_output, finish_schedule
from ...progress import ProgressDisplay


@dataclass(frozen=True, kw_only=True)
class BuildCommand(WritingCommand, BuildRequest):
    """The command ``pipeloom build``: calls :func:`pipeloom.build` and writes the schedule, or
    lists the families."""

    family: str = field(default="", metadata=place("FAMILY", "?"))
    profile: Any = field(default=None, metadata=place("PROFILE", "?"))
    list: bool = option(default=False)
    """list the families"""

    def run(self) -> int:
        if self.list:
            return self._list_families()
        if self.profile is None:
            name = "PROFILE" if self.family else "FAMILY"
            raise InputError(f"{name}: missing; expected FAMILY PROFILE, or --list")
        from pipeloom.planner.build import build

        check_output(self)
        display = ProgressDisplay()
        profile = read_profile(self.profile, display)
        asked = self.arguments(BuildRequest) | {"profile": profile, "progress": display}
        finish_schedule(self, build(**asked))
        return 0

    def _list_families(self) -> int:
        from pipeloom.planner.build import families

        found = families()
        facts = {"families": [{"name": n, "summary": words} for n, words in found.items()]}
        answer(self, facts, table(["family", "what it is"], map(list, found.items())))
        return 0
