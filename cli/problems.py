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


def make_problem(args: argparse.Namespace, profile: Profile, memory_limit: float | None) -> Problem:
    """The problem that the optimizer solves.

    Raises InputError where the profile's stages do not fit the placement that ``args`` name.
    """
    from pipeloom.ir.problem import Objective, Placement, Problem

    chunks = args.placement
    if chunks != 1 and profile.num_stages == profile.ranks:
        profile = profile.split(chunks)
    if profile.num_stages != chunks * profile.ranks:
        raise InputError(_misplaced(named(args.profile), profile, chunks))
    placement = (
        Placement.linear(profile.ranks)
        if chunks == 1
        else Placement.interleaved(profile.ranks, chunks)
    )
    limit = profile.limit_from(memory_limit)
    return Problem(profile, args.microbatches, placement, limit, Objective(args.objective))


def _misplaced(where: str, profile: Profile, chunks: int) -> str:
    stages, ranks = profile.num_stages, profile.ranks
    expected = f"{ranks}" if chunks == 1 else f"{ranks} (to be cut) or {chunks * ranks}"
    placement = "linear" if chunks == 1 else f"interleaved:{chunks}"
    hint = f"; --placement interleaved:{stages // ranks} fits" if stages % ranks == 0 else ""
    return (
        f"{where}: num_stages: expected {expected} for the placement {placement} on {ranks} ranks, "
        f"got {stages}{hint}"
    )


def named(path: str) -> str:
    """How a message calls an input."""
    return "standard input" if path == "-" else path
