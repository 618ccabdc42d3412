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
    add_microbatches(parser, "; by default, the length of the profile's lists")
    parser.add_argument(
        "--objective",
        choices=["period", "makespan"],
        help="cost of an iteration: without a barrier between optimizer steps (period) or with one "
        "(makespan); by default, the profile's barrier decides",
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
        help="activation memory of every rank, in the profile's unit (20G or 16GiB if that is "
        "bytes), or none; by default, the profile's memory_limit, which can be a list with one "
        "limit for each rank",
    )


def add_passing(parser: argparse.ArgumentParser, *more: str) -> None:
    """Adds ``--passing``; ``more``: ways of passing beside those that a problem can have."""
    parser.add_argument(
        "--passing",
        choices=[*PASSINGS, *more],
        default=PASSINGS[0],
        help="what ranks send: activations (the default; each stage stays on its rank) or weights "
        "(each microbatch stays on its rank)"
        + "; auto: the fastest of these and fully sharded data parallelism"
        * bool(more),
    )


def add_remat(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--recompute",
        choices=["auto", "all", "none"],
        default="auto",
        help="which activations to recompute before their backward: those for which it pays (auto, "
        "the default), all, or none; only stages with t_r and m_r in the profile can",
    )
    parser.add_argument(
        "--offload",
        choices=["auto", "none"],
        default="auto",
        help="which activations to offload to the host: those for which it pays (auto, the "
        "default), or none; needs host_link and stages with m_o in the profile",
    )


def add_solver(
    parser: argparse.ArgumentParser, time_limit: float, what: str = "the search"
) -> None:
    """Adds the optimizer's options."""
    parser.add_argument(
        "--placement",
        metavar="P",
        type=placement,
        help="ranks of the stages: auto (the default) chooses the best of linear (stage s on rank "
        "s), interleaved:K (stage s on rank s mod P, K stages per rank), v (down the ranks and "
        "back up), wave:K (K such passes), and, if two copies of the weights are known to fit, "
        "bidirectional (stage s on ranks s and P-1-s); or a JSON file that lists the rank of each "
        "stage. A profile with one stage per rank is cut into at most max_stages stages",
    )
    parser.add_argument(
        "--solver",
        choices=["auto", "cp-sat", "milp", "heuristic"],
        default="auto",
        help="auto (the default) runs search, bounds and CP-SAT in parallel; heuristic runs only "
        "the search; milp solves an integer program with CBC",
    )
    add_limits(
        parser,
        f"for {what} over all placements, {time_limit:g} by default; stops earlier once the "
        "schedule is proven optimal",
        f" for {what} and placement",
        "the same seed gives the same schedule",
    )
    add_seed(parser)
    add_quiet(parser)


def add_limits(parser: argparse._ActionsContainer, time: str, work: str, same: str) -> None:
    """Adds the limits on time and on work, of which one may be given: on seconds ``time``, or on
    ``work``, with which the answer is the ``same``."""
    limits = parser.add_mutually_exclusive_group()
    limits.add_argument("--time-limit", metavar="S", type=seconds, help=f"seconds {time}")
    words = f"instead of seconds: work{work}, in millions of simulated ops (about 100 take a"
    limits.add_argument("--work-limit", metavar="N", type=amount, help=f"{words} second); {same}")


def add_seed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seed", metavar="N", type=whole, default=0, help="seed of random choices, 0 by default"
    )


def add_quiet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-q", "--quiet", action="store_true", help="print no progress")


def add_start(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--start",
        metavar="SCHEDULE",
        help="schedule to start the search from, for example the previous batch's; it must have "
        "the same stages, ranks and number of microbatches",
    )


def add_slow(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--slow",
        metavar="RANK:X,...",
        action=Together,
        type=slow,
        help="ranks that take X times as long as in the profile, such as 3:1.2",
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
        help=f"processes that solve {what} in parallel and share the cores; {usual} by default; 1 "
        "uses only this process",
    )
    where.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="use the workers of this Dask scheduler instead, such as tcp://host:8786",
    )


def add_partition(parser: argparse.ArgumentParser) -> None:
    """How the layers of a profile are cut by the optimizer."""
    parser.add_argument(
        "--partition",
        choices=["joint", "balanced", "even"],
        help="how to cut a profile's layers into stages: joint (the default) optimizes the cut "
        "together with the schedule, balanced makes the longest stage as short as possible, even "
        "gives each stage the same number of blocks",
    )
    for most in ("min", "max"):
        parser.add_argument(
            f"--{most}-layers",
            metavar="N",
            type=at_least_one,
            help=f"{most}imum number of layers in a stage",
        )


def add_cut(parser: argparse.ArgumentParser) -> None:
    """How the layers of a profile are cut for families."""
    parser.add_argument(
        "--partition",
        metavar="HOW",
        help="how to cut a profile's layers into stages: balanced (the default) makes the longest "
        "stage as short as possible, even gives each stage the same number of blocks; or a "
        "schedule file, whose cut is used",
    )


def add_cache(parser: argparse.ArgumentParser, words: str) -> None:
    parser.add_argument("--cache", metavar="DIR", help=f"folder {words}")


def add_output(parser: argparse.ArgumentParser, what: str) -> None:
    words = f"where to write the {what}; - is standard output, the default unless it is a terminal"
    parser.add_argument("-o", "--output", metavar="FILE", help=words)


def add_folder(parser: argparse.ArgumentParser, what: str, *, required: bool = False) -> None:
    """Adds the folder that is written to."""
    words = f"folder for {what}"
    parser.add_argument("-o", "--output", metavar="DIR", required=required, help=words)
