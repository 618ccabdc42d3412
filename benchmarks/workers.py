"""Measures cases in worker processes, or each in a new process."""

from __future__ import annotations

import json
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
    together = [case for case in cases if not case.timed]
    with _pool(workers) as pool:
        yield from zip(together, pool.map(partial(measure, name), together), strict=True)
    for case in cases:
        if case.timed:
            yield case, measure(name, case)


def _pool(workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, get_context("spawn"))


def measure(name: str, case: Case) -> Row:
    """Measure a case and return its row. If measuring raises an error, the row contains its text as
    ``failed``, and no figures."""
    try:
        if case.fresh:
            with _pool(1) as pool:
                found = pool.submit(_figures, name, case).result()
        else:
            found = _figures(name, case)
    except Exception as error:
        found = {"failed": f"{type(error).__name__}: {error}"}
    row: Row = json.loads(json.dumps({"part": case.part, "case": case.name, **found}))
    return row


def _figures(name: str, case: Case) -> Row:
    return load(name).measure(case)
