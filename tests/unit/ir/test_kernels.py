"""Kernels with damaged cache files are compiled and cached again; the cache is optional."""

from __future__ import annotations

import errno
import runpy
from pathlib import Path

import pytest
from numba.core.caching import CacheImpl, IndexDataCacheFile

from pipeloom.ir import kernel

SCRIPT = """
from pipeloom.ir import kernel

@kernel
def twice(number):
    return 2 * number

assert twice(21) == 42
"""


def run(script: Path) -> int:
    """The number of kernels read from disk."""
    twice = runpy.run_path(str(script))["twice"]
    return sum(twice.stats.cache_hits.values())


def test_damaged_entries_are_rebuilt(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    assert run(script) == 0
    (index,), (code,) = tmp_path.rglob("*.nbi"), tmp_path.rglob("*.nbc")
    index.write_bytes(index.read_bytes()[:-9])
    assert [run(script), run(script)] == [0, 1]
    data = code.read_bytes()
    middle = len(data) // 2
    code.write_bytes(data[:middle] + bytes([data[middle] ^ 255]) + data[middle + 1 :])
    assert [run(script), run(script)] == [0, 1]


def double(number: int) -> int:
    return 2 * number


def test_a_disk_that_takes_nothing_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(IndexDataCacheFile, "_open_for_write", full)
    assert kernel(double)(21) == 42
    monkeypatch.setattr(CacheImpl, "_locator_classes", [])  # no folder is writable
    assert kernel(double)(21) == 42
