"""Converts another system's format to a schedule with the times of a profile.

example:
  pipeloom import schedule.csv --from torch-csv --profile profile.json -o schedule.json
  pipeloom import schedule.csv --from torch-csv --profile layers.json --partition even -o s.json
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeloom.planner.requests.files import ImportRequest

from ...arguments import WritingCommand
from ...output import check_output, finish_schedule
from ...progress import ProgressDisplay


@dataclass(frozen=True, kw_only=True)
class ImportCommand(WritingCommand, ImportRequest):
    """The command ``pipeloom import``: calls :func:`pipeloom.import_`, and writes the schedule."""

    def run(self) -> int:
        from pipeloom.planner.exchange import import_

        check_output(self)
        asked = self.arguments(ImportRequest) | {"progress": ProgressDisplay()}
        finish_schedule(self, import_(**asked))
        return 0
