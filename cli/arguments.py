"""Arguments that several commands share, and how their values are read. Imports nothing heavy."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from typing import Any

from pipeloom.ir.errors import InputError
from pipeloom.planner.inputs.placement_spec import PlacementSpec

# more microbatches than anyone runs; arrays of that size would exhaust memory
MOST_MICROBATCHES = 100_000
# the exporters' names: importing them here would make every --help wait for NumPy
FORMATS = ("torch-csv", "torchtitan", "torchtitan-toml", "megatron-layout")
READ_BACK = ("torch-csv", "megatron-layout")
UNITS = {
    **{"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15},
    **{"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40, "PiB": 2.0**50},
}
"""Units of memory; kB, MB and so on are as k, M."""
TRANSFORMER = ("layers", "hidden", "sequence", "microbatch", "teraflops")
"""Keys that describe a calculated model: counts, and the last one a number."""
PASSINGS = ("activations", "weights")
TRANSFORMER_TOO = ("attention_teraflops", "memory_gigabytes_per_second", "recompute")
"""Further keys of a calculated model: numbers, and 0 or 1."""
CLUSTER = ("ranks", "island", "inside", "between")
"""Keys that describe islands of ranks: counts, then gigabytes a second."""
LEAST_NUMBER, MOST_NUMBER = 1e-6, 10**9
MOST_CALCULATED_RANKS = 512
MOST_PROCESSES = 1024
FAMILY_EXAMPLES = "gpipe, 1f1b, interleaved-1f1b:2, zb-h1, zb-h2"


class Limit(float):
    """A memory limit that knows how it was typed."""

    words: str


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


def add_instance(parser: argparse.ArgumentParser) -> None:
    """Adds the options that make a problem of a profile, the memory limit aside."""
    parser.add_argument(
        "-m",
        "--microbatches",
        metavar="M",
        type=count,
        help="microbatches of an iteration; by default as many as the profile has numbers for",
    )
    parser.add_argument(
        "--objective",
        choices=["period", "makespan"],
        default="period",
        help="what an iteration costs: without an optimizer barrier (period, the default) or with "
        "one",
    )


def add_table(parser: argparse.ArgumentParser, time_limit: float, what: str = "each solve") -> None:
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
        + "; auto: these, sharded data, or islands that pass both, whichever is fastest"
        * bool(more),
    )


def add_remat(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--recompute",
        metavar="{auto,all,none,LEVEL}",
        default="auto",
        help="activations computed again before their backward, of stages with t_r and m_r, or "
        "levels, in the profile: where it pays, and at the level that pays (auto, the default), "
        "all of them, or none; or, by its name, one of the levels alone",
    )
    parser.add_argument(
        "--offload",
        choices=["auto", "none"],
        default="auto",
        help="activations moved to the host and back, of stages with m_o in a profile with a "
        "host_link: where it pays (auto, the default), or none",
    )


def add_solver(
    parser: argparse.ArgumentParser, time_limit: float, what: str = "each solve", auto: str = ""
) -> None:
    """Adds the optimizer's options; ``auto``: the meaning of a time limit for --placement auto."""
    parser.add_argument(
        "--placement",
        metavar="P",
        type=placement,
        default=None if auto else "linear",
        help="where stages live: linear (stage s on rank s, the default), interleaved:K (stage s "
        "on rank s mod P, K stages a rank), v (down the ranks and back up), wave:K (so K times), a "
        "JSON file that lists the rank of each stage, or auto (optimize only: the best of the "
        "first four, or with two copies of the weights where they are known to fit); a profile of "
        "one stage a rank is cut",
    )
    parser.add_argument(
        "--solver",
        choices=["auto", "cp-sat", "milp", "highs", "heuristic"],
        default="auto",
        help="auto (the default) runs search, bounds and cp-sat side by side",
    )
    limits = parser.add_mutually_exclusive_group()
    limits.add_argument(
        "--time-limit",
        metavar="S",
        type=seconds,
        default=None if auto else time_limit,
        help=f"seconds for {what}, {time_limit:g} by default; it ends sooner once optimal{auto}",
    )
    limits.add_argument(
        "--work-limit",
        metavar="N",
        type=amount,
        help=f"instead of seconds: work for {what}, in millions of simulated ops (about a hundred "
        "take a second); the same seed then gives the same schedule",
    )
    add_seed(parser)
    add_quiet(parser)


def add_seed(parser: argparse.ArgumentParser, what: str = "random choices") -> None:
    parser.add_argument(
        "--seed", metavar="N", type=whole, default=0, help=f"seed of {what}, 0 by default"
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


def add_cut(parser: argparse.ArgumentParser, *, files: bool = True) -> None:
    """How the layers of a profile are cut for families; ``files``: or as in a schedule."""
    parser.add_argument(
        "--partition",
        metavar="HOW",
        help="how a profile's layers are cut into stages: balanced (the longest stage as short as "
        "can be, the default), even (as many blocks each)"
        + (", or a schedule, whose cut is taken" if files else ""),
    )


def add_output(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help=f"where to write the {what}; standard output by default and for -",
    )


def _whole_number(least: int, most: int, words: str) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = _integer(text)
        if value is None or not least <= value <= most:
            raise argparse.ArgumentTypeError(f"expected a whole number {words}, got {text!r}")
        return value

    return read


def _positive(what: str) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = _number(text)
        if value is None or value <= 0:
            raise argparse.ArgumentTypeError(f"expected {what} > 0, got {text!r}")
        return value

    return read


count = _whole_number(1, MOST_MICROBATCHES, f"from 1 to {MOST_MICROBATCHES}")
at_least_one, whole = (_whole_number(n, 2**31 - 1, f">= {n}") for n in (1, 0))
workers = _whole_number(1, MOST_PROCESSES, f"from 1 to {MOST_PROCESSES}")
seconds, amount = _positive("seconds"), _positive("a number")


def transformer(text: str) -> dict[str, float]:
    """``layers=32,hidden=1024,...``: all of :data:`TRANSFORMER`, any of :data:`TRANSFORMER_TOO`."""
    return _described(
        text, TRANSFORMER, TRANSFORMER_TOO, {"layers", "hidden", "sequence", "microbatch"}
    )


def cluster(text: str) -> dict[str, float]:
    """``ranks=16,island=8,inside=200,between=1.2``: all of :data:`CLUSTER`, maybe ``latency``."""
    return _described(text, CLUSTER, ("latency",), {"ranks", "island"})


def spread(text: str) -> float | str:
    """A relative standard deviation, or else the name of a file."""
    try:
        value = float(text or "nan")
    except ValueError:
        return text
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, got {text!r}")
    return value


def slow(text: str) -> dict[int, float]:
    """``3:1.2,5:1.1``"""
    found: dict[int, float] = {}
    for part in text.split(","):
        first, _, rest = part.partition(":")
        rank, times = _integer(first), _number(rest)
        if rank is None or rank in found or times is None or times <= 0:
            raise argparse.ArgumentTypeError(
                f"expected RANK:X, each rank once and X > 0, such as 3:1.2, got {text!r}"
            )
        found[rank] = times
    return found


def _described(
    text: str, needed: tuple[str, ...], possible: tuple[str, ...], counts: set[str]
) -> dict[str, float]:
    """``key=N,...``: all of ``needed`` and any of ``possible``, each at most once."""
    pairs = [part.partition("=") for part in text.split(",")]
    keys = [key for key, _, _ in pairs]
    if not set(needed) <= set(keys) <= {*needed, *possible} or len(set(keys)) < len(keys):
        expected = ", ".join(f"{key}=N" for key in needed)
        too = ", ".join(f"{key}=N" for key in possible)
        raise argparse.ArgumentTypeError(
            f"expected {expected}, each once, and any of {too}, got {text!r}"
        )
    return {key: _described_value(key, word, key in counts) for key, _, word in pairs}


def _described_value(key: str, word: str, counted: bool) -> float:
    if key == "recompute":
        if word not in {"0", "1"}:
            raise argparse.ArgumentTypeError(f"{key}: expected 0 or 1, got {word!r}")
        return float(word)
    value = _integer(word) if counted else _number(word)
    least = 1 if counted else 0.0 if key == "latency" else LEAST_NUMBER
    most = MOST_CALCULATED_RANKS if key == "ranks" else MOST_NUMBER
    if value is None or not least <= value <= most:
        kind = "whole number" if counted else "number"
        raise argparse.ArgumentTypeError(
            f"{key}: expected a {kind} from {least:g} to {most:g}, got {word!r}"
        )
    return value


def _integer(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def placement(text: str) -> PlacementSpec:
    try:
        return PlacementSpec.of(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("placement: ")) from None


def stages(text: str) -> list[int]:
    """``0,3``"""
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise argparse.ArgumentTypeError(f"expected stages, such as 0,3, got {text!r}")
    return list(map(int, parts))


def number(text: str) -> float:
    value = _number(text)
    if value is None:
        raise argparse.ArgumentTypeError(f"expected a finite number, got {text!r}")
    return value


def limit(text: str) -> Limit:
    """``8``, ``20e9``, ``20G``, ``19.5 GiB``, ``none``."""
    words = "".join(text.split())
    value = _limit(words)
    if value is None:
        raise argparse.ArgumentTypeError(
            "expected a finite number >= 0, such as 8, 20e9, 20G, 8MiB or 16GiB, or none, got "
            f"{text!r}"
        )
    given = Limit(value)
    given.words = words
    return given


def _limit(words: str) -> float | None:
    if words == "none":
        return math.inf
    match = re.fullmatch(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]*)", words)
    if match is None:
        return None
    unit = match[2]
    if not unit.endswith("iB"):
        unit = unit.removesuffix("B")
        if unit.endswith("B"):  # GiBB
            return None
    size, value = UNITS.get("k" if unit == "K" else unit), _number(match[1])
    if size is None or value is None or not math.isfinite(size * value):
        return None
    return size * value


def scale(text: str) -> list[int]:
    """``8,16,32``"""
    return [at_least_one(word) for word in text.split(",")]


def limits(text: str) -> list[Limit]:
    """``A,B,...`` without doubles, from small to large."""
    return sorted(set(map(limit, text.split(","))))


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
