"""Measurements of steps: bytes held, a GPU's clock, and notes on differences from the plan."""

from __future__ import annotations

import platform
import resource
import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from pipeloom.compiler import compile_schedule
from pipeloom.ir import Profile, Schedule, StageProfile, timed
from pipeloom.runtime import Ledger, Pipeline
from tests.support.inside import DeviceClock, over_the_limit
from tests.support.one_rank import FUSED, each, program, square
from tests.support.schedules import schedule


def test_of_a_tensor_made_of_others_the_memory_inside_counts() -> None:
    """For example a DTensor, here without the processes that it needs."""
    ledger, inside = Ledger(), torch.randn(8, 16)
    ledger.start([])
    with ledger.watching():
        y = TwoTensor(inside, inside.clone()).requires_grad_().exp()
    assert ledger.live == 2 * inside.nbytes
    del y
    assert ledger.live == 0


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_memory_that_ops_free_and_take_again_is_cleared_once() -> None:
    """Pages of the C allocator stay with a process that has made a pipeline."""
    Pipeline(program(each(FUSED, 2)), [nn.Linear(4, 4), nn.Linear(4, 4)], loss=square)
    found = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        kept = [torch.ones(1 << 18) for _ in range(32)]  # 32 MiB
        found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        del kept
    assert found[-1] < 100  # of 8192 pages


class Event:
    """Records the device's clock, ``now``."""

    def __init__(self, device: Any) -> None:
        self._device, self.reached = device, 0.0

    def record(self, stream: object = None) -> None:
        self.reached = self._device.now

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, later: Event) -> float:
        return later.reached - self.reached


def test_a_gpus_clock_is_one_for_all_and_dated_anew_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A delayed reading on the host, as after a minute, is ignored."""
    device: Any = SimpleNamespace(device=torch.device("cuda", 99), now=5000.0)
    device.current, device.synchronize = lambda: device, lambda: None
    device.event = lambda *, timed: Event(device)
    spend = partial(lambda ms: setattr(device, "now", device.now + ms), 3.0)
    first, second = DeviceClock(2, device), DeviceClock(2, device)
    ops = [clock.timed(spend, 0) for clock in (first, second)]
    for clock in (first, second):
        clock.start()
    before = time.perf_counter()
    for op in ops:
        op()
    begin, end = first.seconds()
    assert end - begin == pytest.approx(0.003)
    assert second.seconds()[0] == end  # the second op began when the first one ended
    assert begin <= before
    monkeypatch.setattr(time, "perf_counter", lambda: before + 60.0)
    device.now += 20_000.0
    first.start()
    ops[0]()
    assert first.seconds()[0] - begin == pytest.approx(20.006)


def lasting(op: float, family: str = "1f1b", **changes: Any) -> Schedule:
    """On two ranks, with ops of ``op`` milliseconds and no delays."""
    plan = schedule(family, 2, 3)
    stage = replace(StageProfile(op, op, op), **changes)
    profile = Profile((stage,) * 2, ranks=2, t_comm=0.0)
    return timed(replace(plan, problem=replace(plan.problem, profile=profile), timing=None))


@pytest.mark.parametrize(
    ("held", "limit", "peaks", "expected"),
    [
        (4000.0, 10000.0, (32000, 12000), "rank 0 held 3.2x the plan's memory limit (32"),
        (4000.0, 10000.0, (9000, 12000), "rank 1 held 1.2x the plan's memory limit (12"),
        (4000.0, 10000.0, (9000, 10010), "rank 1 held 1.001x the plan's memory limit (10"),
        (4000.0, 10000.0, (9000, 10000), ""),
        (4000.0, float("inf"), (9000, 10000), ""),
        (1.0, 2.0, (9000, 10000), ""),  # counted in microbatches
    ],
)
def test_a_peak_above_the_limit(
    held: float, limit: float, peaks: tuple[int, int], expected: str
) -> None:
    plan = lasting(5.0, m_b=held, activation_bytes=15.0)
    problem = replace(plan.problem, memory_limit=(limit, limit))
    found = over_the_limit(compile_schedule(replace(plan, problem=problem, timing=None)), peaks)
    assert (found or "").startswith(expected)
    assert bool(found) == bool(expected)
