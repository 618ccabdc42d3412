"""Traces that Primus writes for its pictures of pipelines: for each rank and iteration, the start
and end times of forwards, backwards and weight gradients.

There is one file per rank, such as ``pp_rank_3.json``: ``{"7": {"total": .., "fwd_start": [..],
"fwd_end": [..], "bwd_start": .., "bwd_end": .., "wgrad_start": .., "wgrad_end": ..}}``, where 7 is
the iteration; or one file for all ranks: ``{"iterations": {"7": [rank 0's, rank 1's, ..]}}``.
``fwd_chunk`` and similar keys number the stages of a rank. Without these keys, a rank has one
stage, and ``vp_size`` in the configuration (``config.json`` in the same folder, or the key
``config``) must be 1. Without times of weight gradients, a backward is a BW.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeloom.ir.documents.fields import MOST_STAGES
from pipeloom.ir.documents.json_reader import is_count
from pipeloom.ir.errors import InputError, show
from pipeloom.ir.model.ops import OpKind

from .samples import MeasuredOps, Sample, time_of

KEYS = ("fwd_start", "fwd_end", "bwd_start", "bwd_end")
_FILE = re.compile(r"pp_rank_(\d+)\.json")


def is_iteration(value: Any) -> bool:
    """Return whether ``value`` is Primus's record of one rank in one iteration."""
    return isinstance(value, dict) and "fwd_start" in value and "bwd_start" in value


def read_primus(document: Mapping[str, Any], where: str, config: Any) -> MeasuredOps:
    """Return the ops in a file of one rank, or in a file of all ranks.

    ``where``: the file's name in messages. Raises InputError if the lists in the file do not match,
    or if ranks have several stages according to ``config`` but ops have no numbers of stages.
    """
    whole, match = document.get("iterations"), _FILE.search(where)
    if whole is None:
        steps: Mapping[str, Any] = {number: [row] for number, row in document.items()}
    else:
        steps = whole if isinstance(whole, dict) else {}
    counts = {len(rows) if isinstance(rows, list) else 0 for rows in steps.values()}
    if len(counts) != 1 or counts == {0}:
        raise InputError(f"{where}: iterations: expected a list of as many ranks for each number")
    (ranks,), about = counts, config if isinstance(config, dict) else {}
    chunks = about.get("vp_size", about.get("vpp_size", 1)) or 1
    samples = [
        sample._replace(stage=sample.stage * ranks + rank)
        for step, (number, rows) in enumerate(steps.items())
        for rank, row in enumerate(rows)
        for sample in _samples(row, step, f"{where}: {number}[{rank}]", chunks)
    ]
    if whole is not None:
        return MeasuredOps(samples, ranks)
    return MeasuredOps(samples, rank=None if match is None else int(match[1]), chunks=True)


def _samples(row: Any, step: int, where: str, chunks_of_rank: int) -> Iterator[Sample]:
    if not is_iteration(row):
        raise InputError(f"{where}: expected an object with {', '.join(KEYS)}, got {show(row)}")
    splits = bool(row.get("wgrad_start"))
    kinds = {"fwd": OpKind.F, "bwd": OpKind.B if splits else OpKind.BW}
    for series, kind in (kinds | ({"wgrad": OpKind.W} if splits else {})).items():
        starts, ends = (_list(row, f"{series}_{key}", where) for key in ("start", "end"))
        chunks = row.get(f"{series}_chunk")
        if not chunks and chunks_of_rank != 1:
            words = f"missing; expected it with vp_size {show(chunks_of_rank)}"
            raise InputError(f"{where}: {series}_chunk: {words}")
        chunks = chunks or [0] * len(starts)
        if not len(starts) == len(ends) == len(chunks):
            raise InputError(f"{where}: {series}_start: expected as many as {series}_end")
        for at, (start, end, chunk) in enumerate(zip(starts, ends, chunks, strict=True)):
            name = f"{where}: {series}_end[{at}]"
            if not (is_count(chunk) and 0 <= chunk < MOST_STAGES):
                raise InputError(f"{where}: {series}_chunk: expected stages, got {show(chunk)}")
            took = time_of(end, name) - time_of(start, f"{where}: {series}_start[{at}]")
            yield Sample(kind, chunk, step, time_of(took, f"{name} - start"))


def _list(row: Mapping[str, Any], key: str, where: str) -> Sequence[Any]:
    value = row.get(key)
    if not isinstance(value, list):
        raise InputError(f"{where}: {key}: expected a list of milliseconds, got {show(value)}")
    return value
