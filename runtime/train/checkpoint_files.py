"""Files of a checkpoint, as ``torch.distributed.checkpoint`` writes them: which are complete, and
which are damaged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata

from pipeloom.ir.errors import InputError, PipeloomError, in_brief

from .checkpoint_reader import METADATA, Reader, unreadable


def latest(folder: str) -> Path:
    """The checkpoint that ``folder`` is, or else the last complete one in it.

    Raises InputError where there is none.
    """
    path = Path(folder)
    if (path / METADATA).is_file():
        return path
    if not path.is_dir():
        raise InputError(f"{folder}: expected a folder with checkpoints, as run --save makes them")
    found = complete(path)
    if not found:
        raise InputError(
            f"{folder}: expected a complete checkpoint, step-N with {METADATA} in it, got none"
        )
    return found[max(found)]


def complete(folder: Path) -> dict[int, Path]:
    """The complete checkpoints of a folder, by step."""
    names = (path for path in folder.glob("step-*") if (path / METADATA).is_file())
    return {int(path.name[5:]): path for path in names if path.name[5:].isdecimal()}


def saved_keys(path: Path) -> Mapping[str, Any]:
    """The contents of a checkpoint, by key. Raises InputError where it cannot be read."""
    return _metadata(path).state_dict_metadata


def check_files(path: Path) -> None:
    """Raises InputError, naming the file, where one of the checkpoint is missing or too short."""
    ends: dict[str, int] = {}
    for value in _metadata(path).storage_data.values():
        name = value.relative_path
        ends[name] = max(ends.get(name, 0), value.offset + value.length)
    for name, end in ends.items():
        file = path / name
        if not file.is_file():
            raise InputError(f"{file}: missing; expected {end} bytes, as {METADATA} says")
        if file.stat().st_size < end:
            raise InputError(
                f"{file}: expected {end} bytes, as {METADATA} says, got {file.stat().st_size}"
            )


@contextmanager
def told(path: Path, done: str, kind: type[PipeloomError] = InputError) -> Iterator[None]:
    """An error of torch.distributed.checkpoint as one line, that of the first rank."""
    try:
        yield
    except CheckpointException as error:
        rank, (cause, _) = min(error.failures.items())
        if isinstance(cause, InputError):  # which names the file
            raise cause from error
        raise kind(f"{path}: cannot be {done}: rank {rank}: {in_brief(cause)}") from error


def _metadata(path: Path) -> Metadata:
    try:
        return Reader(path).read_metadata()
    except Exception as error:
        raise unreadable(path / METADATA, error) from None
