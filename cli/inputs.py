"""From a command's arguments to what the library's functions take, and back to its faults."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from pipeloom.ir.errors import InputError

from .kernel_warmup import announce_compiling
from .progress import interruptible, watched

if TYPE_CHECKING:
    from pipeloom.planner.inputs.problem_setup import ProfileSource
    from pipeloom.planner.solving.progress import Listener

CACHE = "PIPELOOM_CACHE"
MICROBATCHES = "-m/--microbatches"
TABLE_OPTIONS = (
    "objective", "passing", "placement", "partition", "min_layers", "max_layers", "solver",
    "time_limit", "work_limit", "seed",
)  # fmt: skip
"""Options of the optimizer that all commands with a search take."""
Found = TypeVar("Found")


def searched(
    args: argparse.Namespace,
    plan: Callable[..., Found],
    *,
    names: Sequence[str],
    table: Sequence[str] = TABLE_OPTIONS,
) -> Found:
    """The answer of ``plan`` to the profile and the options of these ``names`` and of ``table``;
    Ctrl-C keeps the best so far."""
    cache = "--cache" if getattr(args, "cache", None) else CACHE
    faults = typed(*table, *names, "output", cache=cache, microbatches=MICROBATCHES)
    with watched(args.quiet) as display, faults:
        profile = read_profile(args, display)
        with interruptible() as interrupt:
            return plan(
                profile,
                args.microbatches,
                **options(args, *table, *names),
                cache=getattr(args, "cache", None) or os.environ.get(CACHE),
                progress=display,
                should_stop=interrupt,
            )


def read_profile(args: argparse.Namespace, tell: Listener) -> ProfileSource:
    """The profile that ``args`` name, checked; compiling kernels is announced even with
    ``--quiet``: it may take a minute, once."""
    from pipeloom.planner.inputs.problem_setup import ProfileSource

    source = ProfileSource(args.profile, tell)
    source.check()
    announce_compiling()
    return source


def options(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """The arguments of these names."""
    return {name: getattr(args, name) for name in names}


@contextmanager
def typed(*names: str, **called: str) -> Iterator[None]:
    """Puts the option in place of each of ``names`` that begins a fault: ``--solver`` for
    solver; of ``called`` what it is called there."""
    spelt = {name: f"--{name.replace('_', '-')}" for name in names} | called
    try:
        yield
    except InputError as error:
        raise InputError(*(_as_typed(line, spelt) for line in error.errors)) from None


def _as_typed(line: str, spelt: dict[str, str]) -> str:
    key, _, words = line.partition(": ")
    name = key.partition("[")[0]  # tied[0]: which of several times it was given
    return f"{spelt[name]}: {words}" if name in spelt else line
