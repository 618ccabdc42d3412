"""GPUs of a machine: none is one readable line before any process starts; ranks may share them."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from examples.gpt import small
from pipeloom.ir import InputError
from pipeloom.runtime import PipelineOptions, RunSettings, measure_profile
from pipeloom.runtime.launch.environment import Gpu, backend_of, gpu_here, own_gpu
from pipeloom.runtime.launch.processes import LOOPBACK, served_store
from pipeloom.runtime.pipeline.preparation import device_for
from pipeloom.runtime.transport.making import meet

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(InputError, match=r"^device: expected cpu, got cuda"):
        measure_profile(small(), stages=2, ranks=2, device="cuda")
    with pytest.raises(InputError, match=r"^device: expected cpu, got cuda"):
        RunSettings(device="cuda")


ONE, TWO, FAR = (True, "a", "GPU-1"), (True, "a", "GPU-2"), (True, "b", "GPU-1")
BARE = (False, "a", "GPU-2")


@pytest.mark.parametrize(
    ("gpus", "backend", "why"),
    [
        ([ONE, TWO], "nccl", ""),
        ([ONE, FAR], "nccl", ""),
        ([ONE, TWO, FAR, ONE], "gloo", "ranks [0, 3] share GPUs"),
        ([ONE, BARE], "gloo", "no NCCL on ranks [1]"),
        ([None, None], "gloo", ""),
    ],
)
def test_nccl_is_chosen_where_each_rank_has_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    gpus: list[Gpu | None],
    backend: str,
    why: str,
) -> None:
    for rank in map(str, range(len(gpus))):
        monkeypatch.setenv("RANK", rank)
        assert backend_of(gpus) == backend
    note = f"note: Gloo instead of NCCL, through the host's memory: {why}\n"
    assert capsys.readouterr().err == (note if why else "")


def test_nccl_is_chosen_where_it_lets_ranks_share_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    assert backend_of([ONE, ONE]) == "nccl"
    assert backend_of([BARE, BARE]) == "gloo"


def test_cuda_alone_is_the_current_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    found = device_for(PipelineOptions(device="cuda"), {})
    assert found == torch.device("cuda", 3)
    assert device_for(PipelineOptions(device="cuda:1"), {}) == torch.device("cuda", 1)
    assert device_for(PipelineOptions(device="cpu"), {}) == CPU


def test_the_gpu_of_a_rank_is_known_by_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that see one GPU each call it 0 all of them."""
    properties = SimpleNamespace(uuid="GPU-2")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    assert gpu_here(CUDA) == (True, socket.gethostname(), "GPU-2")
    assert gpu_here(CPU) is None


def test_the_backend_is_chosen_from_the_gpus_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    store, seen = served_store(), list[Gpu | None]()
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": LOOPBACK, "MASTER_PORT": store.port}
    for name, value in place.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")

    def backend(gpus: list[Gpu | None]) -> str:
        seen.extend(gpus)
        return "gloo"

    meet(ONE, backend, 30)
    dist.destroy_process_group()
    assert seen == [ONE]


def test_ranks_take_gpus_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert own_gpu() == 1
