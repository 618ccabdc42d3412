"""Functions compiled by numba, with a cache on disk that tolerates damaged entries.

Numba unpickles its cache entries; if a file is truncated or a disk block is lost, it raises or runs
damaged machine code. Here each entry begins with its SHA-256 digest, and damaged entries are
compiled again. If the cache cannot be written, as on a full disk, each process compiles the
functions itself.
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


def kernel(
    function: Function, *, inline: Literal["never", "always"] = "never", allocates: bool = True
) -> Function:
    """Return ``function`` compiled with numba; the compiled function releases the GIL.

    The machine code is cached on disk if numba finds a folder that can be written. ``inline``: as
    in :func:`numba.njit`. ``allocates``: whether ``function`` creates arrays, including temporary
    ones. If not, references to arrays are not counted, which makes functions that pass on tuples of
    arrays several times faster.
    """
    options: dict[str, Any] = {"_nrt": allocates}  # not among numba's annotations
    compiled: Any = numba.njit(nogil=True, inline=inline, **options)(function)
    with suppress(RuntimeError):  # no folder can be written
        compiled.enable_caching()
        compiled._cache._cache_file.__class__ = _CheckedFile
    return cast("Function", compiled)


class _CheckedFile(IndexDataCacheFile):
    """Numba's on-disk cache of one kernel; damaged entries are treated as if they were absent."""

    def _load_index(self) -> Any:
        files: Any = super()
        try:
            return files._load_index()
        except Exception:  # unpickling damaged bytes can raise anything
            return {}

    def load(self, key: Any) -> Any:
        files: Any = super()
        try:
            return files.load(key)
        except Exception:
            return None

    def save(self, key: Any, data: Any) -> None:
        files: Any = super()
        with suppress(OSError):  # such as a full disk
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
    """Measures the seconds in which at least one thread compiles; compiler passes can be nested."""

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
    """Seconds that this process has spent compiling kernels; loading from the cache is excluded."""
    return _CLOCK.seconds
