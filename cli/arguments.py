"""Options that several commands share. Imports nothing heavy.

Each reader of an option's value, of numbers, memory, placements, raises ArgumentTypeError with what
was expected.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any, TypeVar

from pipeloom.ir.errors import InputError
from pipeloom.planner.inputs.placement_spec import PlacementSpec
from pipeloom.planner.inputs.words import MemorySize, number_in, size_in, slow_in

Read = TypeVar("Read")

# more microbatches than anyone runs; arrays of that size would exhaust memory
MOST_MICROBATCHES = 100_000
MOST_PROCESSES = 1024


def _whole_number(least: int, most: int, words: str) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = _integer(text)
        if value is None or not least <= value <= most:
            raise argparse.ArgumentTypeError(f"expected a whole number {words}, got {text!r}")
        return value

    return read


def _positive(what: str) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = number_in(text)
        if value is None or value <= 0:
            raise argparse.ArgumentTypeError(f"expected {what} > 0, got {text!r}")
        return value

    return read


count = _whole_number(1, MOST_MICROBATCHES, f"from 1 to {MOST_MICROBATCHES}")
at_least_one, whole = (_whole_number(n, 2**31 - 1, f">= {n}") for n in (1, 0))
workers = _whole_number(1, MOST_PROCESSES, f"from 1 to {MOST_PROCESSES}")
seconds, amount = _positive("seconds"), _positive("a number")


def slow(text: str) -> dict[int, float]:
    """``3:1.2,5:1.1``"""
    return _read(slow_in, text)


def _read(reader: Callable[[str], Read], text: str) -> Read:
    """Read ``text`` with a function of the library; report its fault as argparse does."""
    try:
        return reader(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("placement: ")) from None


def _integer(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def placement(text: str) -> PlacementSpec:
    return _read(PlacementSpec.of, text)


def stages(text: str) -> list[int]:
    """``0,3``"""
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise argparse.ArgumentTypeError(f"expected stages, such as 0,3, got {text!r}")
    return list(map(int, parts))


def number(text: str) -> float:
    value = number_in(text)
    if value is None:
        raise argparse.ArgumentTypeError(f"expected a finite number, got {text!r}")
    return value


def limit(text: str) -> MemorySize:
    """``8``, ``20e9``, ``20G``, ``19.5 GiB``, ``none``."""
    return _read(size_in, text)


def scale(text: str) -> list[int]:
    """``8,16,32``"""
    return [at_least_one(word) for word in text.split(",")]


def limits(text: str) -> list[MemorySize]:
    """``A,B,...``, commas or spaces between, without doubles, from small to large."""
    return sorted(set(map(limit, re.split(r"(?:,\s*|\s+)(?=[0-9n])", text.strip(", ")))))


# the exporters' names: importing them here would make every --help wait for NumPy
FORMATS = ("torch-csv", "torchtitan", "torchtitan-toml", "megatron-layout")
READ_BACK = ("torch-csv", "megatron-layout")
PASSINGS = ("activations", "weights")
FAMILY_EXAMPLES = "gpipe, 1f1b, interleaved-1f1b:2, zb-h1, zb-h2"


class Together(argparse.Action):
    """Takes what an option brings each time that it is given: a list, or a table by rank."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        given = getattr(namespace, self.dest) or type(values)()
        if isinstance(values, dict):
            if twice := given.keys() & values.keys():
                raise argparse.ArgumentError(
                    self, f"rank {min(twice)}: expected once, got it twice"
                )
            values = given | values
        elif given:
            values = sorted({*given, *values})
        setattr(namespace, self.dest, values)


def example(parser: argparse.ArgumentParser, *lines: str) -> None:
    """Closes the help with examples."""
    parser.epilog = "example:\n" + "\n".join(f"  {line}" for line in lines)


def add_profile(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("profile", metavar="PROFILE", help="profile file, - for standard input")


def add_schedule(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("schedule", metavar="SCHEDULE", help="schedule file, - for standard input")


def add_microbatches(parser: argparse.ArgumentParser, more: str) -> None:
    words = f"microbatches of an iteration{more}"
    parser.add_argument("-m", "--microbatches", metavar="M", type=count, help=words)


def add_instance(parser: argparse.ArgumentParser) -> None:
    """Adds the options that make a problem of a profile, the memory limit aside."""
    add_microbatches(parser, "; by default as many as the profile has numbers for")
    parser.add_argument(
        "--objective",
        choices=["period", "makespan"],
        help="what an iteration costs without a barrier between optimizer steps (period), or with "
        "one (makespan); by default as the profile's barrier says",
    )


def add_table(parser: argparse.ArgumentParser, time_limit: float, what: str = "the search") -> None:
    """Adds the arguments of commands that search, and lay schedules side by side."""
    add_profile(parser)
    add_instance(parser)
    add_passing(parser)
    add_solver(parser, time_limit, what)
    add_partition(parser)


def add_memory_limit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--memory-limit",
        metavar="X",
        type=limit,
        help="activation memory of each rank, in the profile's unit, or none; 20G or 16GiB where "
        "that is bytes; the profile's own limit by default",
    )


def add_passing(parser: argparse.ArgumentParser, *more: str) -> None:
    """Adds ``--passing``; ``more``: ways of passing beside those that a problem can have."""
    parser.add_argument(
        "--passing",
        choices=[*PASSINGS, *more],
        default=PASSINGS[0],
        help="what is sent: activations between stages that stay on ranks (the default), or "
        "weights between ranks that keep their microbatches"
        + "; auto: these or sharded data, whichever is fastest"
        * bool(more),
    )


def add_remat(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--recompute",
        choices=["auto", "all", "none"],
        default="auto",
        help="activations computed again before their backward, of stages with t_r and m_r in the "
        "profile: where it pays (auto, the default), all of them, or none",
    )
    parser.add_argument(
        "--offload",
        choices=["auto", "none"],
        default="auto",
        help="activations moved to the host and back, of stages with m_o in a profile with a "
        "host_link: where it pays (auto, the default), or none",
    )


def add_solver(
    parser: argparse.ArgumentParser, time_limit: float, what: str = "the search"
) -> None:
    """Adds the optimizer's options."""
    parser.add_argument(
        "--placement",
        metavar="P",
        type=placement,
        help="where stages live: auto (the default: the best of the next four, or of two copies "
        "where they are known to fit), linear (stage s on rank s), interleaved:K (stage s on rank "
        "s mod P, K stages a rank), v (down the ranks and back up), wave:K (so K times), "
        "bidirectional (stage s on ranks s and P-1-s, two copies of the weights), or a JSON file "
        "that lists the rank of each stage; a profile of one stage a rank is cut, into at most its "
        "max_stages",
    )
    parser.add_argument(
        "--solver",
        choices=["auto", "cp-sat", "milp", "heuristic"],
        default="auto",
        help="auto (the default) runs search, bounds and cp-sat side by side; heuristic is the "
        "search alone; milp is by CBC",
    )
    add_limits(
        parser,
        f"for {what}, all placements together, {time_limit:g} by default; it ends sooner once "
        "optimal",
        f" for {what} and placement",
        "the same seed then gives the same schedule",
    )
    add_seed(parser)
    add_quiet(parser)


def add_limits(parser: argparse._ActionsContainer, time: str, work: str, same: str) -> None:
    """Adds the limits on time and on work, of which one may be given: on seconds ``time``, or on
    ``work``, with which the answer is the ``same``."""
    limits = parser.add_mutually_exclusive_group()
    limits.add_argument("--time-limit", metavar="S", type=seconds, help=f"seconds {time}")
    words = f"instead of seconds: work{work}, in millions of simulated ops (about a hundred take a"
    limits.add_argument("--work-limit", metavar="N", type=amount, help=f"{words} second); {same}")


def add_seed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seed", metavar="N", type=whole, default=0, help="seed of random choices, 0 by default"
    )


def add_quiet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress on standard error")


def add_start(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--start",
        metavar="SCHEDULE",
        help="a schedule of as many microbatches on the same stages and ranks, that of the batch "
        "before say, whose order of ops the search begins with",
    )


def add_slow(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--slow",
        metavar="RANK:X,...",
        action=Together,
        type=slow,
        help="ranks that take X times as long as the profile says, such as 3:1.2",
    )


def add_workers(
    parser: argparse._ActionsContainer, what: str, usual: str = "one for every two cores"
) -> None:
    """Adds where ``what`` is solved side by side."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--workers",
        metavar="N",
        type=workers,
        help=f"processes that solve {what} side by side and share the cores; {usual} by default, "
        "with 1 this process",
    )
    where.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="instead: the workers of the Dask scheduler there, such as tcp://host:8786",
    )


def add_partition(parser: argparse.ArgumentParser) -> None:
    """How the layers of a profile are cut by the optimizer."""
    parser.add_argument(
        "--partition",
        choices=["joint", "balanced", "even"],
        help="how a profile's layers are cut into stages: together with the schedule (joint, the "
        "default), so that the longest stage is as short as can be (balanced), or as many blocks "
        "each (even)",
    )
    for most in ("min", "max"):
        parser.add_argument(
            f"--{most}-layers",
            metavar="N",
            type=at_least_one,
            help=f"{most}imum of layers that a stage has",
        )


def add_cut(parser: argparse.ArgumentParser) -> None:
    """How the layers of a profile are cut for families."""
    parser.add_argument(
        "--partition",
        metavar="HOW",
        help="how a profile's layers are cut into stages: balanced (the longest stage as short as "
        "can be, the default), even (as many blocks each), or a schedule, whose cut is taken",
    )


def add_cache(parser: argparse.ArgumentParser, words: str) -> None:
    parser.add_argument("--cache", metavar="DIR", help=f"folder {words}")


def add_output(parser: argparse.ArgumentParser, what: str) -> None:
    words = f"where to write the {what}; - is standard output, the default but on a terminal"
    parser.add_argument("-o", "--output", metavar="FILE", help=words)


def add_folder(parser: argparse.ArgumentParser, what: str, *, required: bool = False) -> None:
    """Adds the folder that is written to."""
    words = f"folder for {what}"
    parser.add_argument("-o", "--output", metavar="DIR", required=required, help=words)
