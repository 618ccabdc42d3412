"""Compares all families and the optimizer for one profile and memory limit.

example:
  pipeloom compare profile.json -m 24 --memory-limit 16
  pipeloom compare profile.json -m 24 --passing weights
  pipeloom compare layers.json -m 24 --max-layers 8
  pipeloom compare profile.json -m 24 --no-optimizer --json
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeloom.planner.requests.search import CompareRequest

from ...arguments import Command, Quiet
from ...failures import say
from ...inputs import searched
from ...output import answer


@dataclass(frozen=True, kw_only=True)
class CompareCommand(Command, Quiet, CompareRequest):
    """The command ``pipeloom compare``: calls :func:`pipeloom.compare`, and prints the table."""

    def run(self) -> int:
        from pipeloom.planner.compare import compare

        found = searched(self, compare, CompareRequest, self.quiet)
        if found.interrupted:
            say("interrupted: optimize is the best so far")
        answer(self, found.to_dict(), found)
        return 0 if found.built else 1
