"""GPUs of a machine: none is one readable line before any process starts; ranks may share them."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from examples.gpt import small
from pipeloom.ir.errors import InputError
from pipeloom.runtime.launch.environment import backend_of, own_gpu
from pipeloom.runtime.profiling.profiler import measure_profile
from pipeloom.runtime.train.settings import RunSettings

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(InputError, match=r"^device: expected cpu, got cuda"):
        measure_profile(small(), stages=2, ranks=2, device="cuda")
    with pytest.raises(InputError, match=r"^device: expected cpu, got cuda"):
        RunSettings(device="cuda")


@pytest.mark.parametrize(
    ("device", "gpus", "nccl", "backend"),
    [
        (CUDA, 4, True, "nccl"),
        (CUDA, 1, True, "gloo"),
        (CUDA, 4, False, "gloo"),
        (CPU, 0, True, "gloo"),
    ],
)
def test_nccl_is_chosen_where_each_rank_has_a_gpu(
    monkeypatch: pytest.MonkeyPatch, device: torch.device, gpus: int, nccl: bool, backend: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: nccl)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert backend_of(device) == backend


def test_ranks_take_gpus_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert own_gpu() == 1
