"""Streams and events, whose constructors torch leaves untyped."""

from __future__ import annotations

from typing import Any, cast

import torch

_EVENT, _STREAM = cast("Any", torch.cuda.Event), cast("Any", torch.cuda.Stream)


def make_event(*, timed: bool) -> torch.cuda.Event:
    event: torch.cuda.Event = _EVENT(enable_timing=timed)
    return event


def make_stream(device: torch.device) -> torch.cuda.Stream:
    stream: torch.cuda.Stream = _STREAM(device)
    return stream
