"""Too few GPUs are one readable line, before any process or thread is started."""

from __future__ import annotations

import pytest
import torch

from examples.gpt import small
from pipeloom.ir.errors import InputError
from pipeloom.runtime.profiling.profiler import measure_profile
from pipeloom.runtime.train.settings import RunSettings


@pytest.mark.parametrize("local", [True, False])
def test_no_gpu(monkeypatch: pytest.MonkeyPatch, local: bool) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(InputError, match=r"^device: expected cpu, got cuda"):
        measure_profile(small(), stages=2, ranks=2, device="cuda", local=local)
    with pytest.raises(InputError, match=r"^device: expected cpu, got cuda"):
        RunSettings(device="cuda", local=local)


def test_processes_need_a_gpu_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(InputError, match=r"a GPU for each of 2 ranks, got 1: as thread ranks"):
        measure_profile(small(), stages=2, ranks=2, device="cuda")
