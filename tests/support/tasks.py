"""Tasks for workers; module-level functions, which other processes can import."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from time import sleep

from pipeloom.planner import stop_asked


def killed_once(task: tuple[int, Path]) -> int:
    """The first process that runs task 1 is killed."""
    number, mark = task
    if number == 1 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    sleep(0.1)
    return number * number


def killed(task: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return task


def stopped(task: int) -> str:
    """The first task is done immediately; the others end when they are asked to stop."""
    while task and not stop_asked():
        sleep(0.01)
    return f"{task} stopped" if task else "0 done"


def until_nobody_waits(mark: Path) -> None:
    mark.with_suffix(".begun").touch()
    while not stop_asked():
        sleep(0.05)
    mark.touch()
