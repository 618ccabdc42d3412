"""Faults found before any process is started, and the GPUs and backend that processes use."""

from __future__ import annotations

import multiprocessing
import socket
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from examples.gpt import small
from pipeloom import compile_schedule, measure, run
from pipeloom.ir import InputError
from pipeloom.runtime import RunSettings
from tests.support.inside import Gpu, backend_of, gpu_here, own_gpu
from tests.support.schedules import schedule


@pytest.fixture(autouse=True)
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(multiprocessing, "get_context", started)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: measure(small(), stages=99), r"^stages: expected 1 to 4 \(the blocks\), got 99$"),
        (
            lambda: run(compile_schedule(schedule("1f1b", 6, 6)), small(), steps=1),
            r"^stages: expected 1 to 4 \(the blocks\), got 6$",
        ),
        (
            lambda: measure(small(), stages=2, ranks=99),
            r"^ranks: expected at most 2, as many as stages, got 99$",
        ),
        (lambda: measure(small(), stages=2, device="cuda"), "^device: expected cpu, got cuda"),
        (lambda: RunSettings(device="cuda"), "^device: expected cpu, got cuda"),
    ],
)
def test_what_does_not_fit_the_model_or_the_machine(call: Any, line: str) -> None:
    with pytest.raises(InputError, match=line):
        call()


ONE, TWO, FAR = (True, "a", "GPU-1"), (True, "a", "GPU-2"), (True, "b", "GPU-1")
BARE = (False, "a", "GPU-2")


@pytest.mark.parametrize(
    ("gpus", "may_share", "backend", "why"),
    [
        ([ONE, TWO], "", "nccl", ""),
        ([ONE, FAR], "", "nccl", ""),
        ([ONE, TWO, FAR, ONE], "", "gloo", "ranks [0, 3] share GPUs"),
        ([ONE, BARE], "", "gloo", "no NCCL on ranks [1]"),
        ([None, None], "", "gloo", ""),
        ([ONE, ONE], "1", "nccl", ""),
        ([BARE, BARE], "1", "gloo", "no NCCL on ranks [0, 1]"),
    ],
)
def test_nccl_is_chosen_where_each_rank_has_a_gpu_or_may_share_one(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    gpus: list[Gpu | None],
    may_share: str,
    backend: str,
    why: str,
) -> None:
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", may_share)
    for rank in map(str, range(len(gpus))):
        monkeypatch.setenv("RANK", rank)
        assert backend_of(gpus) == backend
    note = f"note: Gloo instead of NCCL, through the host's memory: {why}\n"
    assert capsys.readouterr().err == (note if why else "")


def test_ranks_take_gpus_in_turn_and_know_them_by_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU has index 0 in every process that sees only one GPU."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    properties = SimpleNamespace(uuid="GPU-2")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert own_gpu() == 1
    assert gpu_here(torch.device("cuda")) == (True, socket.gethostname(), "GPU-2")
    assert gpu_here(torch.device("cpu")) is None
