"""Streams and events, whose constructors torch leaves untyped."""

from __future__ import annotations

from typing import Any, cast

import torch

from pipeloom.ir.errors import InputError

CYCLES = 1.5e6  # of a GPU's clock in a millisecond, about
_EVENT, _STREAM = cast("Any", torch.cuda.Event), cast("Any", torch.cuda.Stream)


def make_event(*, timed: bool) -> torch.cuda.Event:
    """``timed``: it tells when it was reached."""
    event: torch.cuda.Event = _EVENT(enable_timing=timed)
    return event


def make_stream(device: torch.device) -> torch.cuda.Stream:
    """A new stream of the device."""
    stream: torch.cuda.Stream = _STREAM(device)
    return stream


def keep_busy(device: torch.device, milliseconds: float) -> None:
    """Occupies a GPU's current stream for about so long, so that the host gets ahead of it."""
    if device.type == "cuda":
        cast("Any", torch.cuda)._sleep(int(milliseconds * CYCLES))


def check_devices() -> None:
    """Raises InputError where torch finds no GPU."""
    if torch.cuda.device_count() == 0:
        raise InputError("device: expected cpu, got cuda: torch finds no CUDA device here")
