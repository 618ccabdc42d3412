"""Steps of several runtimes in turn in the same processes, and what makes the machine count less.

Each rank notes when its steps begin and end on the machine's one clock.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist

Span = tuple[float, float, float]
"""When a step began and ended, and the seconds of the processor that it took."""

PR_SET_TIMERSLACK = 29
PRIORITY = 10
LATENCY_REQUEST = Path("/dev/cpu_dma_latency")
AWAKE = 1e-4  # seconds before a deadline from which on a sleep only yields
SOON = 2e-3  # seconds
WARMUP = 2


def in_turn(runs: Mapping[str, Callable[[], object]], steps: int) -> dict[str, list[Span]]:
    """The steps of each run on this rank: a step of one, then of the next.

    Two more steps of each go before.
    """
    spans: dict[str, list[Span]] = {name: [] for name in runs}
    for _ in range(steps + WARMUP):
        for name, run in runs.items():
            _start_together()
            used, begin = time.process_time(), time.perf_counter()
            run()
            end = time.perf_counter()
            spans[name].append((begin, end, time.process_time() - used))
    return {name: row[WARMUP:] for name, row in spans.items()}


def median_step(ranks: Sequence[Sequence[Span]]) -> float:
    """The median step of all ranks, from the first one's start to the last one's end, in
    milliseconds."""
    steps = zip(*ranks, strict=True)
    taken = [max(e for _, e, _ in step) - min(b for b, _, _ in step) for step in steps]
    return 1e3 * float(median(taken))


def median_processor(ranks: Sequence[Sequence[Span]]) -> float:
    """The median of the processor's milliseconds that a step takes on all ranks together."""
    return 1e3 * float(median(sum(u for *_, u in step) for step in zip(*ranks, strict=True)))


def _start_together() -> None:
    """Returns on all ranks at one time: a barrier alone lets them go one after the other."""
    dist.barrier()
    at = torch.tensor(time.perf_counter() + SOON, dtype=torch.float64)
    dist.broadcast(at, 0)
    sleep_until(at.item())


def sleep_until(deadline: float) -> None:
    """Sleeps to the microsecond: ``time.sleep`` alone is a tenth of a millisecond late."""
    while (left := deadline - time.perf_counter()) > 0:
        if left > AWAKE:
            time.sleep(left - AWAKE)
        else:
            os.sched_yield()


def before_others() -> None:
    """One thread for torch; where it is allowed, real-time scheduling and exact timers for all
    threads of this process, and for those that are started later."""
    torch.set_num_threads(1)
    try:
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
        for thread in Path("/proc/self/task").iterdir():
            os.sched_setscheduler(int(thread.name), os.SCHED_FIFO, os.sched_param(PRIORITY))
    except (OSError, AttributeError):
        return


@contextmanager
def cores_awake() -> Iterator[bool]:
    """A context in which an idle core polls, where that is allowed; gives whether it does.

    A core of a virtual machine that halts is given to somebody else, and comes back late and cold.
    """
    try:
        file = LATENCY_REQUEST.open("wb", buffering=0)
    except OSError:
        yield False
        return
    with file:
        file.write(bytes(4))  # no latency is low enough; holds until it is closed
        yield True
