"""One rank of the ring: ``python -m benchmarks.slow_link.rank TASKS ANSWER``, started by
workers.py."""

from __future__ import annotations

import os
import pickle
import sys
import threading
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from .workers import Task

TIMEOUT = timedelta(seconds=120)  # of any one message


def main(tasks: Path, answer: Path) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _go_first()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=TIMEOUT)
    given: list[Task] = pickle.loads(tasks.read_bytes())
    answers = [task.run() for task in given]
    answer.write_bytes(pickle.dumps(answers))
    dist.destroy_process_group()


def _go_first() -> None:
    """Ranks sleep most of the time; what else runs on this machine shall not wake them late."""
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
