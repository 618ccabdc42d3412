"""Measures cases in worker processes, or each in a new process.

``python -m benchmarks.workers`` measures one case: it reads the benchmark's name and the case,
pickled, from standard input, and prints the row as JSON.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import cast

from . import Benchmark, Case, Row

ROOT = Path(__file__).parents[1]


def load(name: str) -> Benchmark:
    return cast(Benchmark, import_module(f"benchmarks.{name}"))


def measured(name: str, cases: Sequence[Case], workers: int) -> Iterator[tuple[Case, Row]]:
    """Measure ``cases`` and yield each with its row.

    Cases that are not timed come first, on ``workers`` processes; timed cases follow, one by one in
    this process.
    """
    run = partial(measure, name)
    together = [case for case in cases if not case.timed]
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        yield from zip(together, pool.map(run, together), strict=True)
    for case in cases:
        if case.timed:
            yield case, run(case)


def measure(name: str, case: Case) -> Row:
    """Measure a case and return its row. If measuring raises an error, the row contains its text as
    ``failed``, and no figures."""
    try:
        found = _in_a_process(name, case) if case.fresh else load(name).measure(case)
    except Exception as error:
        found = {"failed": f"{type(error).__name__}: {error}"}
    row: Row = json.loads(json.dumps({"part": case.part, "case": case.name, **found}))
    return row


def _in_a_process(name: str, case: Case) -> Row:
    words = [sys.executable, "-m", "benchmarks.workers"]
    given = pickle.dumps((name, case))
    done = subprocess.run(words, input=given, capture_output=True, cwd=ROOT, check=False)
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        return {"failed": lines[-1] if lines else f"exit code {done.returncode}"}
    found: Row = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    name, case = pickle.loads(sys.stdin.buffer.read())
    print(json.dumps(load(name).measure(case)))
