"""Writes a schedule in another system's format and prints the flags to use with it.

example:
  pipeloom export schedule.json --to torch-csv -o schedule.csv
  pipeloom export schedule.json --to megatron-layout --micro-batch-size 2
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeloom.planner.requests.files import ExportRequest

from ...arguments import WritingCommand
from ...output import check_output, print_json, say_words


@dataclass(frozen=True, kw_only=True)
class ExportCommand(WritingCommand, ExportRequest):
    """The command ``pipeloom export``: calls :func:`pipeloom.export`, writes the text and prints
    the flags."""

    def run(self) -> int:
        from pipeloom.ir.formats import write_text
        from pipeloom.planner.exchange import export

        check_output(self)
        exported = export(**self.arguments(ExportRequest))
        to_stdout = self.output in (None, "-")
        if not (to_stdout and self.json):
            write_text(exported.text, self.output or "-")
        if self.json:
            print_json({"output": self.output} | exported.to_dict())
        else:
            # text on standard output may be redirected to a file
            written = "" if to_stdout else f"{exported.summary}\nwritten to {self.output}\n"
            say_words(f"{written}{exported.launch(self.output or 'FILE')}", aside=to_stdout)
        return 0
