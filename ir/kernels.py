"""Compiled loops, kept on disk by numba; an entry there that is damaged is compiled again.

Numba unpickles what its cache holds, and raises, or runs damaged machine code, where somebody has
cut a file off or a disk has lost a block. Here each entry has a digest before it. Where nothing can
be kept, as on a full disk, each process compiles for itself.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any, Literal, TypeVar, cast

import numba
from numba.core import event
from numba.core.caching import IndexDataCacheFile

_DIGEST = hashlib.sha256


Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function, *, inline: Literal["never", "always"] = "never") -> Function:
    """Decorates a function that numba compiles without the interpreter's lock, and keeps where a
    folder may be written."""
    compiled: Any = numba.njit(nogil=True, inline=inline)(function)
    with suppress(RuntimeError):  # there is no such folder
        compiled.enable_caching()
        compiled._cache._cache_file.__class__ = _CheckedFile
    return cast("Function", compiled)


class _CheckedFile(IndexDataCacheFile):
    """Entries of one kernel; those that are damaged count as absent."""

    def _load_index(self) -> Any:
        files: Any = super()
        try:
            return files._load_index()
        except Exception:  # whatever unpickling of damaged bytes raises
            return {}

    def load(self, key: Any) -> Any:
        files: Any = super()
        try:
            return files.load(key)
        except Exception:
            return None

    def save(self, key: Any, data: Any) -> None:
        files: Any = super()
        with suppress(OSError):  # a full disk
            files.save(key, data)

    def _load_data(self, name: str) -> Any:
        files: Any = self
        data = Path(files._data_path(name)).read_bytes()
        size = _DIGEST().digest_size
        if _DIGEST(data[size:]).digest() != data[:size]:
            return None
        return pickle.loads(data[size:])

    def _save_data(self, name: str, data: Any) -> None:
        files: Any = self
        entry = files._dump(data)
        with files._open_for_write(files._data_path(name)) as file:
            file.write(_DIGEST(entry).digest() + entry)


class _CompileClock(event.Listener):
    """Counts the seconds in which at least one thread compiles; passes are nested."""

    def __init__(self) -> None:
        self._lock, self._passes, self._since, self._before = Lock(), 0, 0.0, 0.0

    @property
    def seconds(self) -> float:
        with self._lock:
            return self._before + (monotonic() - self._since if self._passes else 0.0)

    def on_start(self, _: event.Event) -> None:
        with self._lock:
            if self._passes == 0:
                self._since = monotonic()
            self._passes += 1

    def on_end(self, _: event.Event) -> None:
        with self._lock:
            self._passes -= 1
            if self._passes == 0:
                self._before += monotonic() - self._since


_CLOCK = _CompileClock()
event.register("numba:run_pass", _CLOCK)  # type: ignore[no-untyped-call]


def seconds_compiling() -> float:
    """How long this process has compiled kernels so far; loading them from disk does not count."""
    return _CLOCK.seconds
