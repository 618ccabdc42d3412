"""Times steps of several runtimes alternately in the same processes, with as little noise as
possible.

Each rank records the start and the end of its steps on a clock that all processes share.
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
"""Start and end of a step, and the CPU time that this rank used in it, in seconds."""

PR_SET_TIMERSLACK = 29
PRIORITY = 10
LATENCY_REQUEST = Path("/dev/cpu_dma_latency")
AWAKE = 1e-4  # seconds before a deadline from which on to yield instead of sleeping
SOON = 2e-3  # seconds until a common start
WARMUP = 2


def in_turn(runs: Mapping[str, Callable[[], object]], steps: int) -> dict[str, list[Span]]:
    """Time ``steps`` steps of each function in ``runs`` on this rank; returns the spans, by name.

    ``runs``: functions that run one step, by name. They take turns: each runs one step, then each
    runs the next. Before the timed steps, each runs ``WARMUP`` steps, which are not returned.
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


def medians(ranks: Sequence[Sequence[Span]]) -> tuple[float, float]:
    """The median duration of a step, and the median of its CPU time summed over all ranks, in
    milliseconds. ``ranks``: the spans of each rank.

    A step lasts from the start of the first rank to the end of the last one.
    """
    steps = [(*zip(*step, strict=True),) for step in zip(*ranks, strict=True)]
    taken = median(max(ends) - min(begins) for begins, ends, _ in steps)
    return 1e3 * taken, 1e3 * median(sum(used) for *_, used in steps)


def _start_together() -> None:
    """Return on all ranks at the same time. With just a barrier, ranks would continue one by
    one."""
    dist.barrier()
    at = torch.tensor(time.perf_counter() + SOON, dtype=torch.float64)
    dist.broadcast(at, 0)
    sleep_until(at.item())


def sleep_until(deadline: float) -> None:
    """Sleep until ``deadline``, in seconds of ``time.perf_counter``, with microsecond precision.

    ``time.sleep`` by itself may return 0.1 ms late.
    """
    while (left := deadline - time.perf_counter()) > 0:
        if left > AWAKE:
            time.sleep(left - AWAKE)
        else:
            os.sched_yield()


def before_others() -> None:
    """Give this process precise timers, priority over other processes, and a single torch thread.

    Priority is real-time scheduling of all threads of the process, and of those that they start
    later. If that is not permitted, threads keep their usual scheduling.
    """
    torch.set_num_threads(1)
    try:
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
        for thread in Path("/proc/self/task").iterdir():
            os.sched_setscheduler(int(thread.name), os.SCHED_FIFO, os.sched_param(PRIORITY))
    except (OSError, AttributeError):
        return


@contextmanager
def cores_awake() -> Iterator[bool]:
    """A context in which idle cores keep polling, if permitted; yields whether they do.

    Without polling, the host of a virtual machine gives a halted core to other machines, and the
    core comes back late and with cold caches.
    """
    try:
        file = LATENCY_REQUEST.open("wb", buffering=0)
    except OSError:
        yield False
        return
    with file:
        file.write(bytes(4))  # a maximum latency of 0, in effect until the file is closed
        yield True
