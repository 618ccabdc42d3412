"""The run times of commands, each in a new process, with compiled kernels in the cache."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

from .. import Case, Claim, Row, Rows, Size, Table, plain
from .simulator import times

PART, RUNS = "commands", 9
PROFILE = str(Path(__file__).parents[2] / "examples" / "profiles" / "zb-6.2b.json")
PIPELOOM = ("-m", "pipeloom")
COMMANDS = {
    "import pipeloom": ("-c", "import pipeloom"),
    "a command starts": (*PIPELOOM, "optimize", "--help"),
    "first schedule": (*PIPELOOM, "build", "zb-h1", PROFILE, "-m", "24"),
    "proven optimum": (
        *PIPELOOM, "optimize", PROFILE, "-m", "24", "--memory-limit", "16", "--placement", "linear",
    ),
}  # fmt: skip
MOST_SECONDS = 6.0
"""The longest run time allowed for the command that proves its schedule optimal, in seconds."""


def cases(size: Size) -> Iterator[Case]:
    for name in COMMANDS:
        yield Case(PART, name, timed=True)


def measure(case: Case) -> Row:
    """The median and the longest of several run times, after one run that fills caches."""
    words = [sys.executable, *COMMANDS[case.name]]
    run = partial(subprocess.run, words, capture_output=True, check=True)
    seconds = times(run, RUNS)
    return {"runs": RUNS, "seconds": median(seconds), "longest_seconds": max(seconds)}


def judge(rows: Rows) -> Iterator[Claim]:
    for row in rows:
        if row["case"] == "proven optimum":
            words = (
                "`pipeloom optimize` proves a schedule of 8 ranks and 24 microbatches optimal in "
                f"{row['seconds']:.1f} s, including the start of the process."
            )
            yield Claim(PART, words, row["longest_seconds"] <= MOST_SECONDS)


columns = {
    PART: Table(
        *plain({"command, including start of the process": "case", "runs": "runs"}),
        *plain({"median s": "seconds", "longest s": "longest_seconds"}, ".2f"),
    )
}
