"""Reading of files with measured ops, whose kind is recognized by their content."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pipeloom.ir.documents.json_reader import parse_json, read_text
from pipeloom.ir.errors import InputError
from pipeloom.ir.formats import SCHEDULE, parse_schedule
from pipeloom.ir.model.schedule import Schedule

from ..inputs.documents import FilePath, named
from .samples import MeasuredOps, Sample, is_plan
from .torch_trace import read_torch_trace

WANTED = "a trace of torch's profiler (JSON with traceEvents) or a measured schedule (run --trace)"
SUFFIXES = (".json", ".json.gz")


def read_recordings(files: Sequence[FilePath]) -> list[MeasuredOps]:
    """Return the ops in each of ``files``, or in each file of a folder among them.

    Raises InputError if a file contains no measured ops, is given twice, or if there are other
    files beside a measured schedule.
    """
    paths = [path for file in files for path in _files(file)]
    known = [path if path == "-" else os.path.realpath(path) for path in paths]
    for at, path in enumerate(paths):
        if known[at] in known[:at]:
            raise InputError(f"{named(path)}: is given twice, expected each file once")
    found = [replace(read_recording(path), where=named(path)) for path in paths]
    if len(found) > 1 and any(recording.profile is not None for recording in found):
        raise InputError(f"{named(paths[0])}: expected one measured schedule, or only traces")
    return found


def read_recording(path: FilePath) -> MeasuredOps:
    """Return the ops in one file. Raises InputError if it contains no measured ops."""
    where = named(path)
    document = parse_json(read_text(os.fspath(path), expected=WANTED), where, others=True)
    if isinstance(document, list):  # a list of events is also a trace of torch's profiler
        document = {"traceEvents": document}
    if not isinstance(document, dict):
        raise InputError(f"{where}: expected {WANTED}")
    if "traceEvents" in document:
        return read_torch_trace(document, where)
    if document.get("format") == SCHEDULE:
        return _measured_schedule(parse_schedule(document, where), where)
    raise InputError(f"{where}: expected {WANTED}")


def _measured_schedule(schedule: Schedule, where: str) -> MeasuredOps:
    problem, timing = schedule.problem, schedule.timing
    if timing is None:
        raise InputError(f"{where}: order: expected start and end of each op")
    if is_plan(schedule):
        raise InputError(f"{where}: expected times that `run --trace` measured, got a plan's")
    samples: list[Sample] = []
    for rank, took in enumerate(timing.took):
        ops = zip(schedule.ops(rank), took.tolist(), strict=True)
        samples += [Sample(op.kind, op.stage, 0, time) for op, time in ops]
    return MeasuredOps(samples, problem.ranks, profile=problem.profile)


def _files(given: FilePath) -> list[FilePath]:
    """Return ``given`` if it is a file; if it is a folder, its files that may contain measured ops,
    sorted by name."""
    if given == "-" or not Path(given).is_dir():
        return [given]
    folder = Path(given).iterdir()
    paths = [p for p in folder if p.name.endswith(SUFFIXES) and p.is_file()]
    if not paths:
        raise InputError(f"{named(given)}: expected files of {', '.join(SUFFIXES)} in the folder")
    return [*sorted(paths)]
