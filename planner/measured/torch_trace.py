"""Traces of torch's profiler (Kineto's JSON), from runs of pipeloom or
torch.distributed.pipelining. Named ranges in them are ops::

    2F0 2B0 2W0 2BW0 2R0        pipeloom: the op
    PP:2F0 PP:2I0 PP:2W0 PP:2B0 torch with several stages per rank; its B is our BW, its I our B

The names of torch's schedules with one stage per rank are not read; Schedule1F1B records none.

The ranges of torch.distributed.pipelining include waiting for messages. In such a range, an op
hence lasts from the start of the first operator to the end of the last one, without operators that
communicate. On a GPU, an op lasts as long as its kernels on the stream on which all ops together
take the longest.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.ops import Op, OpKind
from pipeloom.ir.units import counted

from .samples import MeasuredOps, numbered, time_of

MICROSECONDS = 1e3  # per millisecond
ON_HOST, ON_DEVICE, OPERATOR = "user_annotation", "gpu_user_annotation", "cpu_op"
COMMUNICATES = re.compile(r"c10d::|gloo:|nccl:|record_param_comms")
OURS = re.compile(r"([0-9]{1,6})(F|BW|B|W|R|O|L)([0-9]{1,6})(?:@[0-9]+)?")
RUNTIME = re.compile(r"PP:([0-9]{1,6})([FIWB])([0-9]{1,6})")
SENT = re.compile(r"send (?:x|dy)([0-9]{1,6})\.[0-9]+ to ([0-9]{1,6})")
OVERLAPPED = re.compile(r"PP:\(.*\)OVERLAP_F_B")
_TORCHS = {"F": OpKind.F, "I": OpKind.B, "W": OpKind.W, "B": OpKind.BW}
WANTED = (
    "ranges named as ops: 2F0 (a pipeloom run) or PP:2F0 (torch.distributed.pipelining; "
    "Schedule1F1B names none, ScheduleInterleaved1F1B does)"
)


class _Range(NamedTuple):
    """A named range: its start and end in microseconds, and its stream or thread."""

    name: str
    start: float
    end: float
    thread: str


def read_torch_trace(document: Mapping[str, Any], where: str) -> MeasuredOps:
    """Return the ops in the trace of one process. ``where``: the file's name in messages. Raises
    InputError if the trace has no ops."""
    events = document["traceEvents"]
    if not isinstance(events, list):
        raise InputError(f"{where}: traceEvents: expected a list")
    by_kind = _ranges(events, where)
    named = by_kind[ON_HOST] + by_kind[ON_DEVICE]
    form = next((f for f in (OURS, RUNTIME) if any(f.fullmatch(e.name) for e in named)), None)
    if form is None:
        raise InputError(f"{where}: expected {WANTED}, found none in the trace")
    ops = _on_device(by_kind[ON_DEVICE], form)
    if not ops:
        ops = [e for e in by_kind[ON_HOST] if form.fullmatch(e.name)]
        ops = ops if form is OURS else _computing(ops, by_kind[OPERATOR])
    ops.sort(key=lambda event: event.start)
    pairs = [(_op(form, e.name), (e.end - e.start) / MICROSECONDS) for e in ops]
    return MeasuredOps(numbered(pairs), notes=_left_out(named, where), peers=_peers(named))


def _peers(named: Sequence[_Range]) -> dict[int, int]:
    """Return, for each stage to which messages were sent (an input x, or the gradient dy of its
    output), the rank of that stage."""
    sent = filter(None, (SENT.fullmatch(event.name) for event in named))
    return {int(match[1]): int(match[2]) for match in sent}


def _ranges(events: Sequence[Any], where: str) -> defaultdict[str, list[_Range]]:
    found: defaultdict[str, list[_Range]] = defaultdict(list)
    for at, event in enumerate(events):
        if not isinstance(event, dict) or event.get("ph") != "X":
            continue
        category = event.get("cat")
        if category in (ON_HOST, ON_DEVICE, OPERATOR):
            found[category].append(_range(event, f"{where}: traceEvents[{at}]"))
    return found


def _range(event: Mapping[str, Any], where: str) -> _Range:
    start, took = (time_of(event.get(key), f"{where}: {key}") for key in ("ts", "dur"))
    return _Range(str(event.get("name")), start, start + took, str(event.get("tid")))


def _on_device(events: Sequence[_Range], form: re.Pattern[str]) -> list[_Range]:
    """Return the ranges of ops on the stream on which ops take the longest in total; other streams
    copy or communicate. The list is empty if there are no ops. ``form``: the pattern of the ops'
    names."""
    streams: defaultdict[str, list[_Range]] = defaultdict(list)
    for event in events:
        if form.fullmatch(event.name):
            streams[event.thread].append(event)
    return max(streams.values(), key=lambda ops: sum(e.end - e.start for e in ops), default=[])


def _computing(ops: Sequence[_Range], operators: Sequence[_Range]) -> list[_Range]:
    """Return the ranges ``ops``, each shortened to the time from the start of its first computing
    operator to the end of its last one. A range without computing operators becomes empty.

    ``operators``: the ranges of all operators, including those that communicate.
    """
    inside = sorted(e for e in operators if not COMMUNICATES.match(e.name))
    inside.sort(key=lambda event: event.start)
    starts = [event.start for event in inside]
    ends = list(accumulate((event.end for event in inside), max))
    found = []
    for op in ops:
        first, beyond = bisect_left(starts, op.start), bisect_left(starts, op.end)
        if first < beyond:
            found.append(op._replace(start=starts[first], end=min(op.end, ends[beyond - 1])))
        else:
            found.append(op._replace(end=op.start))
    return found


def _op(form: re.Pattern[str], name: str) -> Op:
    match = form.fullmatch(name)
    assert match is not None
    if form is OURS:
        return Op.parse(name)
    return Op(_TORCHS[match[2]], int(match[1]), int(match[3]))


def _left_out(named: Sequence[_Range], where: str) -> tuple[str, ...]:
    count = sum(OVERLAPPED.fullmatch(event.name) is not None for event in named)
    if not count:
        return ()
    return (f"{where}: {counted(count, 'range')} of a forward and a backward at once left out",)
