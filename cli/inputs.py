"""From a command's arguments to the problem that is solved."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pipeloom.ir.errors import InputError, InvalidScheduleError
from pipeloom.ir.units import counted

from .kernel_warmup import announce_compiling

if TYPE_CHECKING:
    from pipeloom.ir.model.problem import Placement, Problem
    from pipeloom.ir.model.profile import Profile

# stages times microbatches; more would exhaust memory
MOST_PAIRS = 20_000_000


def load(args: argparse.Namespace) -> Profile:
    """The profile that ``args`` name, checked against their number of microbatches.

    Without what it says of recomputing or offloading where ``args`` want none of that.
    """
    return with_levers(args, checked(args, profile_of(document(args), named(args.profile))))


def announce_unless_quiet(args: argparse.Namespace) -> None:
    if not getattr(args, "quiet", False):
        announce_compiling()


def document(args: argparse.Namespace) -> dict[str, Any]:
    """What is in the profile that ``args`` name: read once, as it may be standard input."""
    from pipeloom.ir.formats.json_reader import read_json

    if getattr(args, "document", None) is None:
        args.document = read_json(args.profile)
    found: dict[str, Any] = args.document
    return found


def recomputes_all(args: argparse.Namespace) -> bool:
    return getattr(args, "recompute", "auto") == "all"


def with_levers(args: argparse.Namespace, profile: Profile, key: str = "stages") -> Profile:
    """``profile`` with the levers that ``args`` want; ``key``: what its file calls its stages.

    Raises InputError where all is to be recomputed and nothing can be.
    """
    from pipeloom.solver.core.relaxations import without_offloading, without_recomputing

    if recomputes_all(args) and all(stage.t_r is None for stage in profile.stages):
        raise InputError(
            f"{named(args.profile)}: {key}: t_r: missing; expected it with m_r for --recompute all"
        )
    if getattr(args, "recompute", "auto") == "none":
        profile = without_recomputing(profile)
    if getattr(args, "offload", "auto") == "none":
        profile = without_offloading(profile)
    return profile


def checked(args: argparse.Namespace, profile: Profile) -> Profile:
    """``profile``, checked against the number of microbatches that ``args`` name."""
    announce_unless_quiet(args)
    check_microbatches(args, profile.num_stages)
    return profile


def check_microbatches(args: argparse.Namespace, stages: int) -> None:
    """Raises InputError where so many stages have room for fewer microbatches than ``args``
    name."""
    most = MOST_PAIRS // stages
    if args.microbatches > most:
        raise InputError(
            f"-m/--microbatches: expected at most {most} for {counted(stages, 'stage')}, got "
            f"{args.microbatches}"
        )


def profile_of(document: dict[str, Any], where: str) -> Profile:
    """The profile in a JSON object; keys of it that look misspelt are named on standard error."""
    from pipeloom.ir.formats import parse_profile

    profile = parse_profile(document, where)
    tell_doubtful_keys(document, where)
    return profile


def tell_doubtful_keys(document: dict[str, Any], where: str) -> None:
    from pipeloom.ir.formats import doubtful_keys

    for line in doubtful_keys(document, where):
        print(f"pipeloom: {line}", file=sys.stderr)


def make_problem(args: argparse.Namespace, profile: Profile, memory_limit: float | None) -> Problem:
    """The problem that the optimizer solves.

    Raises InputError where the profile's stages do not fit the placement that ``args`` name.
    """
    from pipeloom.ir.model.problem import Objective, Problem

    profile, placement = _PLACED[args.passing](args, profile)
    limit = profile.limit_from(memory_limit)
    return Problem(profile, args.microbatches, placement, limit, Objective(args.objective))


def _stages_stay(args: argparse.Namespace, profile: Profile) -> tuple[Profile, Placement]:
    placed: tuple[Profile, Placement] = args.placement.place(profile, named(args.profile))
    return placed


def _microbatches_stay(args: argparse.Namespace, profile: Profile) -> tuple[Profile, Placement]:
    """Microbatch j on rank j mod P, which runs all stages of it."""
    from pipeloom.ir.model.problem import Placement

    if args.placement.name != "linear":
        raise InputError(
            "--placement: expected none with --passing weights, where every rank runs all stages, "
            f"got {args.placement.name!r}"
        )
    return profile, Placement.round_robin(profile.ranks, args.microbatches)


_PLACED = {"activations": _stages_stay, "weights": _microbatches_stay}
"""By what travels: the profile as its stages are cut, and where ops are placed."""


@contextmanager
def typed(*names: str) -> Iterator[None]:
    """Puts the option in place of each of ``names`` that begins a fault: ``--solver`` for
    solver."""
    try:
        yield
    except InputError as error:
        raise InputError(*(_as_typed(line, names) for line in error.errors)) from None


def _as_typed(line: str, names: tuple[str, ...]) -> str:
    key, _, words = line.partition(": ")
    name = key.partition("[")[0]  # tied[0]: which of several times it was given
    return f"--{name.replace('_', '-')}: {words}" if name in names else line


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Puts the name of the file in front of each fault that is found in what was read from it, not
    of those that name an option."""
    try:
        yield
    except InputError as error:
        lines = (
            line if line.startswith("--") else f"{named(path)}: {line}" for line in error.errors
        )
        raise InputError(*lines) from None
    except InvalidScheduleError as error:
        raise InvalidScheduleError(
            [f"{named(path)}: {line}" for line in error.violations]
        ) from None


def named(path: str) -> str:
    """How a message calls an input."""
    return "standard input" if path == "-" else path
