"""Disjoint parts of a GPU's multiprocessors, with a stream each: green contexts, made by the CUDA
driver.

::

    132 multiprocessors ──split once──▶ 32 │ 32 │ 32 │ 32 │ 4 left over
                                        a stream each: what is queued on it runs there alone

``torch.cuda.GreenContext`` splits the whole device anew each time and keeps the first part, so all
ranks would share one; and within it torch computes on the context's default stream, which a
backward does not find again. A stream made in a green context keeps its share whatever context is
current, so torch uses it like any other.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_int, c_ubyte, c_uint, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

DRIVER = "libcuda.so.1"
# of cuda.h: CU_DEV_RESOURCE_TYPE_SM, CU_GREEN_CTX_DEFAULT_STREAM (must be given),
# CU_STREAM_NON_BLOCKING
_MULTIPROCESSORS, _DEFAULT_STREAM, _NON_BLOCKING = 1, 1, 1


class NoPartitionsError(RuntimeError):
    """Why the multiprocessors cannot be divided."""


@dataclass(frozen=True, slots=True)
class Partitions:
    """A stream for each part; ``multiprocessors``: those of each; ``left``: those of none."""

    streams: Sequence[torch.cuda.Stream]
    multiprocessors: int
    left: int


class _Resource(ctypes.Structure):
    """``CUdevResource``: 144 bytes in CUDA 12.4 to 13, the count after the type and 92 bytes."""

    _fields_ = (
        ("type", c_uint),
        ("padding", c_ubyte * 92),
        ("count", c_uint),
        ("rest", c_ubyte * 44),
    )


@cache
def partitions(index: int, parts: int) -> Partitions:
    """``parts`` of device ``index``, alike and disjoint; the same for each call, and never given
    up.

    Raises NoPartitionsError where driver or device have no green contexts, or too few
    multiprocessors.
    """
    torch.cuda.synchronize(index)  # makes the device's context
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError as error:
        raise NoPartitionsError(str(error)) from None
    handles, each, left = split(driver, index, parts)
    device = torch.device("cuda", index)
    return Partitions([_external(handle, device) for handle in handles], each, left)


def split(driver: Any, index: int, parts: int) -> tuple[list[int], int, int]:
    """Streams' handles, the multiprocessors of each part, and those left over."""
    device, whole, rest = c_int(), _Resource(), _Resource()
    _call(driver, "cuDeviceGet", byref(device), c_int(index))
    _call(driver, "cuDeviceGetDevResource", device, byref(whole), c_int(_MULTIPROCESSORS))
    groups = (_Resource * parts)()
    # the driver rounds up to what the device can divide by: the most of which it makes enough parts
    for least in range(whole.count // parts, 0, -1):
        made = c_uint(parts)
        arguments = groups, byref(made), byref(whole), byref(rest), c_uint(0), c_uint(least)
        if not _status(driver, "cuDevSmResourceSplitByCount", *arguments) and made.value == parts:
            handles = [_stream(driver, device, group) for group in groups]
            return handles, groups[0].count, whole.count - sum(group.count for group in groups)
    raise NoPartitionsError(f"{whole.count} multiprocessors cannot be divided into {parts} parts")


def _stream(driver: Any, device: c_int, group: _Resource) -> int:
    """A stream whose work runs on ``group`` alone."""
    description, context, stream = c_void_p(), c_void_p(), c_void_p()
    _call(driver, "cuDevResourceGenerateDesc", byref(description), byref(group), c_uint(1))
    flags = c_uint(_DEFAULT_STREAM)
    _call(driver, "cuGreenCtxCreate", byref(context), description, device, flags)
    flags, priority = c_uint(_NON_BLOCKING), c_int(0)
    _call(driver, "cuGreenCtxStreamCreate", byref(stream), context, flags, priority)
    assert stream.value is not None
    return stream.value


def _call(driver: Any, name: str, *arguments: object) -> None:
    status = _status(driver, name, *arguments)
    if status:
        raise NoPartitionsError(f"{name}: the CUDA driver's error {status}")


def _status(driver: Any, name: str, *arguments: object) -> int:
    try:
        function = getattr(driver, name)
    except AttributeError:
        raise NoPartitionsError(f"the CUDA driver has no {name}") from None
    status: int = function(*arguments)
    return status


def _external(handle: int, device: torch.device) -> torch.cuda.Stream:
    make: Any = torch.cuda.ExternalStream
    stream: torch.cuda.Stream = make(handle, device=device)
    return stream
