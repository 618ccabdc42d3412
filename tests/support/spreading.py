"""Solves of a benchmark side by side: in processes here, or on a Dask cluster."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from pipeloom.planner import Event, Note, Workers
from pipeloom.planner.solving.workers import in_order, processes_here
from pipeloom.solver import NEVER, StoppingCriterion

Task = TypeVar("Task")
Result = TypeVar("Result")


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Adds ``--workers`` and ``--scheduler``."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--workers",
        type=int,
        default=processes_here(),
        help="processes side by side; one for every two cores by default",
    )
    where.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="instead: workers of the Dask scheduler there, which run in this checkout",
    )


def spread(
    options: argparse.Namespace,
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    should_stop: StoppingCriterion = NEVER,
) -> Iterator[tuple[Task, Result]]:
    """Each task with its result, in order; lost workers are told."""
    workers = Workers(options.workers, options.scheduler)
    results = workers.run(function, tasks, tell=_tell, should_stop=should_stop)
    for number, result in in_order(results):
        yield tasks[number], result


def _tell(event: Event) -> None:
    if isinstance(event, Note):
        print(event, flush=True)
