"""The watch of a rank's steps looks into the store while a step is under way, not after it."""

import gc
import threading
import time
from typing import Any

import pytest

from pipeloom.compiler import compile_schedule
from pipeloom.runtime.rank import step_watch
from pipeloom.runtime.rank.step_watch import StepWatch
from pipeloom.runtime.transport.gloo import GlooTransport
from tests.distributed.cases.gradients import schedule

GLANCE = 0.005


def test_the_store_is_asked_during_steps_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that serves it may end after them, of which torch would complain."""
    looks: list[int] = []
    transport: Any = object.__new__(GlooTransport)
    transport.size = 2
    monkeypatch.setattr(step_watch, "GLANCE", GLANCE)
    monkeypatch.setattr(StepWatch, "_store", lambda *_: None)
    monkeypatch.setattr(StepWatch, "_looked", lambda _, step, __: looks.append(step))
    watch = StepWatch(transport, compile_schedule(schedule("1f1b", 2, 2)))
    for step in (2, 3):
        watch.begin(step)
        end = time.monotonic() + 10
        while step not in looks and time.monotonic() < end:
            time.sleep(GLANCE)
        watch.over()
        time.sleep(GLANCE)  # a look may be under way
        before = len(looks)
        time.sleep(20 * GLANCE)
        assert step in looks
        assert len(looks) == before
    watch.close()


def test_a_watch_that_nobody_closes_ends_its_thread_when_it_is_dropped() -> None:
    transport: Any = object.__new__(GlooTransport)
    transport.size = 2
    before = {*threading.enumerate()}
    watch = StepWatch(transport, compile_schedule(schedule("1f1b", 2, 2)))
    watch.begin(1)
    watch.over()
    (thread,) = {*threading.enumerate()} - before
    del watch
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()
