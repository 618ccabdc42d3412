"""Rank 0, which serves the store of ``torch.distributed``, is stopped while others ask it."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist

from pipeloom.runtime import Pipeline
from pipeloom.runtime.transport import process_group
from pipeloom.runtime.transport.making import meet
from tests.failures.cases import RANKS, Doing, linears, made, squared, step
from tests.support.launched import until


def makes_none(patience: float) -> None:
    if dist.get_rank() == 0:
        _stop()
        return
    _pipeline(patience)


def does_not_connect(patience: float) -> None:
    real = process_group.new_group
    if dist.get_rank() == 0:
        process_group.new_group = lambda *_: _stop()  # type: ignore[assignment, return-value]
    try:
        _pipeline(patience)
    finally:
        process_group.new_group = real


def stops_in_a_step(patience: float) -> None:
    step(_pipeline(patience), RANKS * 2)


MOMENTS: list[Callable[[float], None]] = [makes_none, does_not_connect, stops_in_a_step]


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _pipeline(patience: float) -> Pipeline:
    first, *others = linears(RANKS)
    stages = [Doing(_stop) if patience < 60.0 else first, *others]
    return Pipeline(made(), stages, loss=squared, timeout=patience)


def stopped_server(
    folder: Path, patience: float, moments: list[Callable[[float], None]]
) -> list[str]:
    """Of each of ``moments`` what this rank raises."""
    step(_pipeline(60.0), RANKS * 2)  # imports take seconds
    return [_at(moment, folder / moment.__name__, patience) for moment in moments]


def _at(moment: Callable[[float], None], folder: Path, patience: float) -> str:
    _meet_anew(folder)
    pids = [0] * RANKS
    dist.all_gather_object(pids, os.getpid())
    said = ""
    try:
        moment(patience)
    except Exception as error:
        said = str(error)
    rank = dist.get_rank()
    (folder / str(rank)).touch()
    if rank == RANKS - 1:
        until(lambda: all((folder / str(other)).exists() for other in range(1, RANKS)))
        os.kill(pids[0], signal.SIGCONT)
    until((folder / "0").exists)
    return said


def _meet_anew(folder: Path) -> None:
    """In a store that rank 0 serves, as where neither torchrun nor a launch of ours does."""
    rank = dist.get_rank()
    if rank == 0:
        folder.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as free:
            (folder / "port.new").write_text(str(free.getsockname()[1]))
        (folder / "port.new").rename(folder / "port")
    dist.destroy_process_group()
    until((folder / "port").exists)
    os.environ["MASTER_PORT"] = (folder / "port").read_text()
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
    meet(None, lambda _: "gloo", 30.0)
