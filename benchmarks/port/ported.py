"""The port of :mod:`.script` to pipeloom: the same text except for :data:`CHANGES`.

``torchrun --nproc-per-node 4 -m benchmarks.port.ported Interleaved1F1B`` prints each step's loss.
It reads a schedule ``Interleaved1F1B.json`` of 4 ranks and 8 microbatches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from . import script

CHANGES = (
    ("small transformer with torch.distributed.pipelining.",
     "small transformer with a program of pipeloom."),
    ("benchmarks.port.script", "benchmarks.port.ported"),
    ("from torch.distributed.pipelining.schedules import get_schedule_class\n", ""),
    ("from examples.gpt import GPT\n",
     "from examples.gpt import GPT\nfrom pipeloom import PlannedSchedule\n"),
    ("    schedule = get_schedule_class(name)(given, MICROBATCHES, loss_fn=MODEL.loss)\n",
     '    program = f"{name}.json"\n'
     "    schedule = PlannedSchedule(given, MICROBATCHES, loss_fn=MODEL.loss, program=program)\n"),
)  # fmt: skip
"""Pairs of a text that occurs once in the script, and its replacement in the port."""


def ported(text: str) -> str:
    """The text of the port, from the text of the script."""
    for before, after in CHANGES:
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    return text


_names: dict[str, Any] = {"__name__": "ported"}
exec(ported(Path(str(script.__file__)).read_text("utf-8")), _names)
train: Callable[[str], Iterator[float | None]] = _names["train"]

if __name__ == "__main__":
    _names["main"]()
