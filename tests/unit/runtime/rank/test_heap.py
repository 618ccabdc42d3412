"""Pages of the C allocator that stay with the process."""

from __future__ import annotations

import platform
import resource

import pytest
import torch

from pipeloom.runtime.rank import heap

CPU = torch.device("cpu")


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_memory_that_is_freed_and_taken_again_is_cleared_once() -> None:
    heap.keep_pages(CPU)
    found = []
    for _ in range(5):
        before = faults()
        kept = [torch.ones(1 << 18) for _ in range(32)]  # 32 MiB
        found.append(faults() - before)
        del kept
    assert found[-1] < 100  # of 8192 pages


@pytest.mark.parametrize(("device", "variable"), [("cuda", None), ("cpu", heap._VARIABLES[0])])
def test_left_alone(device: str, variable: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if variable is not None:
        monkeypatch.setenv(variable, "131072")
    called = list[None]()
    monkeypatch.setattr(heap, "_keep", lambda: called.append(None))
    heap.keep_pages(torch.device(device))
    assert called == []
    monkeypatch.delenv(heap._VARIABLES[0], raising=False)
    heap.keep_pages(CPU)
    assert called == [None]
