"""Several functions in one launch, and runs with this process as the only rank."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch.distributed as dist

from pipeloom.runtime import launch_ranks

Call = tuple[Callable[..., Any], tuple[Any, ...]]


def in_one_launch(ranks: int, calls: Sequence[Call]) -> list[list[Any]]:
    """For each call, its result on each rank; the calls run one after the other in the same
    processes."""
    found = launch_ranks(_in_turn, ranks, (calls,), timeout=280, message_timeout=60)
    return [[found[rank][i] for rank in range(ranks)] for i in range(len(calls))]


def _in_turn(calls: Sequence[Call]) -> list[Any]:
    return [function(*args) for function, args in calls]


@contextmanager
def the_only_rank() -> Iterator[None]:
    """This process is the only rank, as under torchrun; a failed run leaves its process group."""
    given = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    with patch.dict(os.environ, given):
        try:
            yield
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
