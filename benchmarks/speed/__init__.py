"""The speed of the simulator, and the run times of commands, including the start of the process.

The simulator's kernel is called as a search calls it, for stages that all differ. Commands run each
in a new process, with compiled kernels in the cache.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from pipeloom import Profile, StageProfile, build_family, simulate
from pipeloom.ir.cost.simulator import Simulator

from .. import Case, Claim, Column, Row, Rows, Size, Table, plain

SIMULATOR, RANKS, MICROBATCHES, REPEATS = "simulator", 32, 256, 301
TARGET_OPS, TARGET_MS = 40e6, 1.0
COMMAND_TIMES, RUNS = "commands", 9
PROFILE = str(Path(__file__).parents[2] / "examples" / "profiles" / "zb-6.2b.json")
PIPELOOM = ("-m", "pipeloom")
COMMANDS = {
    "import pipeloom": ("-c", "import pipeloom"),
    "a command starts": (*PIPELOOM, "optimize", "--help"),
    "first schedule": (*PIPELOOM, "build", "zb-h1", PROFILE, "-m", "24"),
    "proven optimum": (
        *PIPELOOM, "optimize", PROFILE, "-m", "24", "--memory-limit", "16", "--placement", "linear",
    ),
}  # fmt: skip
MOST_SECONDS = 6.0
"""The longest run time allowed for the command that proves its schedule optimal, in seconds."""


def cases(size: Size) -> Iterator[Case]:
    yield Case(SIMULATOR, f"{RANKS} x {MICROBATCHES}", timed=True)
    for name in COMMANDS:
        yield Case(COMMAND_TIMES, name, timed=True)


def measure(case: Case) -> Row:
    return _simulator() if case.part == SIMULATOR else _command(case.name)


def _simulator() -> Row:
    """The time of the kernel alone, called as a search calls it, and of the whole
    :func:`simulate`."""
    schedule = build_family("zb-h1", unequal_profile(), MICROBATCHES)
    order = np.concatenate(schedule.order)
    simulator = Simulator(schedule.problem, np.cumsum([0, *map(len, schedule.order)]))

    def kernel() -> None:
        assert simulator.run(order)

    seconds = times(kernel, REPEATS)
    assert tuple(simulator.peak.tolist()) == simulate(schedule).peak_memory
    return {
        "ops": len(order),
        "median_ms": median(seconds) * 1e3,
        "ops_per_second": len(order) / median(seconds),
        "simulate_ms": median(times(lambda: simulate(schedule), 21)) * 1e3,
    }


def _command(name: str) -> Row:
    """The median and the longest of several run times, after one run that fills caches."""
    words = [sys.executable, *COMMANDS[name]]
    run = partial(subprocess.run, words, capture_output=True, check=True)
    seconds = times(run, RUNS)
    return {"runs": RUNS, "seconds": median(seconds), "longest_seconds": max(seconds)}


def unequal_profile() -> Profile:
    """A random profile in which all stages and links differ: times by +-20 %, delays from 0.2 to
    0.6 ms."""
    random = np.random.default_rng(0)
    times = random.uniform(0.8, 1.2, (RANKS, 4)) * (10.0, 10.0, 8.0, 1.0)
    stages = tuple(StageProfile(f, b, w, m, 0.4 * m) for f, b, w, m in times.tolist())
    t_comm = random.uniform(0.2, 0.6, (RANKS, RANKS))
    return Profile(stages, RANKS, tuple(map(tuple, t_comm.tolist())))


def times(run: Callable[[], object], repeats: int) -> list[float]:
    """The duration in seconds of each of ``repeats`` calls of ``run``, after one call that compiles
    and fills caches."""
    run()
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return seconds


def judge(rows: Rows) -> Iterator[Claim]:
    for row in rows:
        if row["part"] == SIMULATOR:
            met = row["ops_per_second"] >= TARGET_OPS and row["median_ms"] < TARGET_MS
            words = (
                f"The simulator processes {row['ops_per_second'] / 1e6:.0f} million ops per "
                f"second; a schedule of {row['ops']:,} ops takes {row['median_ms']:.2f} ms."
            )
            yield Claim(SIMULATOR, words, met)
        if row["case"] == "proven optimum":
            words = (
                "`pipeloom optimize` proves a schedule of 8 ranks and 24 microbatches optimal in "
                f"{row['seconds']:.1f} s, including the start of the process."
            )
            yield Claim(COMMAND_TIMES, words, row["longest_seconds"] <= MOST_SECONDS)


columns = {
    SIMULATOR: Table(
        *plain({"ranks x microbatches": "case"}),
        *plain("ops", ",d"),
        *plain({"median ms": "median_ms"}, ".3f"),
        *plain({"whole simulate(), ms": "simulate_ms"}, ".2f"),
        Column("million ops/s", lambda row: row["ops_per_second"] / 1e6, ".1f"),
    ),
    COMMAND_TIMES: Table(
        *plain({"command, including start of the process": "case", "runs": "runs"}),
        *plain({"median s": "seconds", "longest s": "longest_seconds"}, ".2f"),
    ),
}
