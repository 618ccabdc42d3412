"""Writes a schedule in another system's format and prints the flags to use with it.

example:
  pipeloom export schedule.json --to torch-csv -o schedule.csv
  pipeloom export schedule.json --to megatron-layout --micro-batch-size 2
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeloom.planner.requests.files import ExportRequest

from ...arguments import WritingCommand
from ...model_arguments import need_torch
from ...output import check_output, print_json, say_words


@dataclass(frozen=True, kw_only=True)
class ExportCommand(WritingCommand, ExportRequest):
    """``pipeloom export``."""

    def run(self) -> int:
        from pipeloom.ir.formats import write_text
        from pipeloom.planner.exchange import export

        check_output(self)
        model = None if self.model is None else _layered(self.model)
        exported = export(**self.arguments(ExportRequest) | {"model": model})
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


def _layered(name: str) -> object:
    """A model source that names its layers. Raises InputError."""
    need_torch()
    from pipeloom.runtime.models.by_name import load_source
    from pipeloom.runtime.pipeline.layered_source import by_layers

    source = load_source(name)
    by_layers(source)
    return source
