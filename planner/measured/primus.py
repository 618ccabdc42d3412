"""Traces that Primus writes for its pipeline pictures: for each rank and iteration, the start and
end times of forwards, backwards and weight gradients.

There is one file per rank, ``pp_rank_3.json``: ``{"7": {"total": .., "fwd_start": [..], "fwd_end":
[..], "bwd_start": .., "bwd_end": .., "wgrad_start": .., "wgrad_end": ..}}``, or all ranks in one:
``{"iterations": {"7": [rank 0's, rank 1's, ..]}}``. ``fwd_chunk`` and similar keys number the
stages of a rank. Without them a rank has one stage, and ``vp_size`` in the configuration
(``config.json`` in the same folder, or ``config``) is 1. Without times of weight gradients, a
backward is a BW.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pipeloom.ir.documents.fields import MOST_STAGES
from pipeloom.ir.documents.json_reader import is_count
from pipeloom.ir.errors import InputError, show
from pipeloom.ir.model.ops import OpKind

from .samples import MeasuredOps, Sample, time_of

KEYS = ("fwd_start", "fwd_end", "bwd_start", "bwd_end")
_FILE = re.compile(r"pp_rank_(\d+)\.json")


def is_iteration(value: Any) -> bool:
    """Whether it is Primus's record of one rank in one iteration."""
    return isinstance(value, dict) and "fwd_start" in value and "bwd_start" in value


def read_primus(document: Mapping[str, Any], where: str, config: Any = None) -> MeasuredOps:
    """The ops of one rank's file. Raises InputError if its lists do not match."""
    match = _FILE.search(where)
    samples = [
        sample
        for step, (number, row) in enumerate(document.items())
        for sample in _samples(row, step, f"{where}: {number}", config)
    ]
    return MeasuredOps(samples, rank=None if match is None else int(match[1]), chunks=True)


def read_primus_ranks(document: Mapping[str, Any], where: str) -> MeasuredOps:
    """The samples in a file with all ranks."""
    iterations = document["iterations"]
    rows = list(iterations.values()) if isinstance(iterations, dict) else []
    counts = {len(row) if isinstance(row, list) else 0 for row in rows}
    if len(counts) != 1 or counts == {0}:
        raise InputError(f"{where}: iterations: expected a list of as many ranks for each number")
    ranks = counts.pop()
    samples = [
        sample._replace(stage=sample.stage * ranks + rank)
        for step, (number, row) in enumerate(iterations.items())
        for rank, of_rank in enumerate(row)
        for sample in _samples(of_rank, step, f"{where}: {number}[{rank}]", document.get("config"))
    ]
    return MeasuredOps(samples, ranks)


def _samples(row: Any, step: int, where: str, config: Any) -> list[Sample]:
    if not is_iteration(row):
        raise InputError(f"{where}: expected an object with {', '.join(KEYS)}, got {show(row)}")
    splits = bool(row.get("wgrad_start"))
    kinds = {"fwd": OpKind.F, "bwd": OpKind.B if splits else OpKind.BW}
    found = []
    for series, kind in (kinds | ({"wgrad": OpKind.W} if splits else {})).items():
        starts, ends = (_list(row, f"{series}_{key}", where) for key in ("start", "end"))
        chunks = _chunks(row, series, where, config) or [0] * len(starts)
        if not len(starts) == len(ends) == len(chunks):
            raise InputError(f"{where}: {series}_start: expected as many as {series}_end")
        for at, (start, end, chunk) in enumerate(zip(starts, ends, chunks, strict=True)):
            begun = time_of(start, f"{where}: {series}_start[{at}]")
            took = time_of(end, f"{where}: {series}_end[{at}]") - begun
            took = time_of(took, f"{where}: {series}_end[{at}] - start")
            found.append(Sample(kind, chunk, step, took))
    return found


def _chunks(row: Mapping[str, Any], series: str, where: str, config: Any) -> Sequence[int]:
    """The chunk of each op; empty if ranks have one stage. Raises InputError if it is required but
    missing."""
    key = f"{series}_chunk"
    if row.get(key):
        chunks = _list(row, key, where)
        if not all(is_count(chunk) and 0 <= chunk < MOST_STAGES for chunk in chunks):
            raise InputError(f"{where}: {key}: expected whole numbers >= 0, got {show(chunks)}")
        return chunks
    about = config if isinstance(config, dict) else {}
    size = about.get("vp_size", about.get("vpp_size", 1))
    if size not in (None, 1):
        raise InputError(f"{where}: {key}: missing; expected it with vp_size {show(size)}")
    return []


def _list(row: Mapping[str, Any], key: str, where: str) -> Sequence[Any]:
    value = row.get(key)
    if not isinstance(value, list):
        raise InputError(f"{where}: {key}: expected a list of milliseconds, got {show(value)}")
    return value
