"""From a command's arguments to the problem that is solved."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pipeloom.ir.errors import InputError

if TYPE_CHECKING:
    from pipeloom.ir.problem import Problem
    from pipeloom.ir.profile import Profile

# stages times microbatches; more would exhaust memory
MOST_PAIRS = 20_000_000


def load(args: argparse.Namespace) -> Profile:
    """The profile that ``args`` name, checked against their number of microbatches."""
    from pipeloom.ir.files import load_profile

    profile = load_profile(args.profile)
    most = MOST_PAIRS // profile.num_stages
    if args.microbatches > most:
        raise InputError(
            f"-m/--microbatches: expected at most {most} for {profile.num_stages} stages, "
            f"got {args.microbatches}"
        )
    return profile


def linear_problem(
    args: argparse.Namespace, profile: Profile, memory_limit: float | None
) -> Problem:
    """The problem that the optimizer solves. Raises InputError for a profile it has no place for."""
    from pipeloom.ir.problem import Objective, Problem

    if profile.num_stages != profile.ranks:
        raise InputError(
            f"{args.profile}: num_stages: expected {profile.ranks}, one stage a rank for the linear "
            f"placement that optimize plans, got {profile.num_stages}"
        )
    return Problem.linear(profile, args.microbatches, memory_limit, Objective(args.objective))


def named(path: str) -> str:
    """How a message calls an input."""
    return "standard input" if path == "-" else path
