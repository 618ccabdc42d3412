"""Finds the best schedule for each memory limit and plots the bubble rate against the limit.

Writes schedule-LIMIT.json for each feasible limit, results.json and frontier.svg.

example:
  pipeloom sweep profile.json -m 24 --memory-limits 8,10,12,14,16 -o sweep/
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeloom.planner.requests.search import SweepRequest

from ...arguments import Command, Quiet
from ...inputs import searched
from ...output import answer


@dataclass(frozen=True, kw_only=True)
class SweepCommand(Command, Quiet, SweepRequest):
    """The command ``pipeloom sweep``: calls :func:`pipeloom.sweep`, which writes the files, and
    prints the table."""

    def run(self) -> int:
        from pipeloom.planner.solving.workers import processes_here
        from pipeloom.planner.sweep import sweep

        spread = {} if self.workers or self.scheduler else {"workers": processes_here()}
        found = searched(self, lambda **asked: sweep(**asked | spread), SweepRequest, self.quiet)
        words = f"{found}\nfrontier.svg, results and schedules written to {self.output}"
        answer(self, found.to_dict(), words)
        return 0 if found.built else 1
