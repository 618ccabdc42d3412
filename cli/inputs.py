"""From a command's arguments to what the library's functions take, and back to its faults."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pipeloom.ir.errors import InputError

from .kernel_warmup import announce_compiling

if TYPE_CHECKING:
    from pipeloom.planner.inputs.problem_setup import ProfileSource
    from pipeloom.planner.solving.progress import Listener

CACHE = "PIPELOOM_CACHE"
MICROBATCHES = "-m/--microbatches"
OPTIMIZER_OPTIONS = (
    "passing", "placement", "partition", "min_layers", "max_layers", "copies", "solver",
)  # fmt: skip
"""Options of the optimizer whose faults name them."""

TABLE_OPTIONS = (
    "objective", "passing", "placement", "partition", "min_layers", "max_layers", "solver",
    "time_limit", "work_limit", "seed",
)  # fmt: skip
"""Options of the optimizer that ``compare`` and ``sweep`` take."""


def read_profile(args: argparse.Namespace, tell: Listener) -> ProfileSource:
    """The profile that ``args`` name; it is announced if kernels are compiled, unless quietly."""
    from pipeloom.planner.inputs.problem_setup import ProfileSource

    source = ProfileSource(args.profile, tell)
    if not getattr(args, "quiet", False):
        announce_compiling()
    return source


def cache_folder(args: argparse.Namespace) -> str | None:
    """The folder of answers, typed or from the environment."""
    return getattr(args, "cache", None) or os.environ.get(CACHE)


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
