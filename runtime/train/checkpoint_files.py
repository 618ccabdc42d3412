"""Files of a checkpoint, as ``torch.distributed.checkpoint`` writes them: which are complete, and
which are damaged."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata

from pipeloom.ir.errors import InputError, PipeloomError, in_brief

from .checkpoint_reader import METADATA, Reader

WHOLE = "expected a file as run --save wrote it"


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
    for name, offset, length in _parts(path):
        ends[name] = max(ends.get(name, 0), offset + length)
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
    """An error of torch.distributed.checkpoint as one line, which names the file that is damaged,
    where one is."""
    try:
        yield
    except CheckpointException as error:
        rank, (cause, _) = min(error.failures.items())
        file = _damaged(path) if kind is InputError else None
        if file is not None:
            raise InputError(f"{file}: damaged; {WHOLE}") from error
        words = in_brief(cause)
        raise kind(f"{path}: cannot be {done}: rank {rank}: {words}") from error


def _damaged(path: Path) -> Path | None:
    """The first file with a part that is no longer what was written (each is a zip archive)."""
    for name, offset, length in _parts(path):
        file = path / name
        with file.open("rb") as opened:
            opened.seek(offset)
            data = io.BytesIO(opened.read(length))
        try:
            with zipfile.ZipFile(data) as archive:
                broken = archive.testzip()
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
            return file
        if broken is not None:
            return file
    return None


def _parts(path: Path) -> list[tuple[str, int, int]]:
    """The places of values: file, offset and length of each."""
    values = _metadata(path).storage_data.values()
    return [(value.relative_path, value.offset, value.length) for value in values]


def _metadata(path: Path) -> Metadata:
    try:
        return Reader(path).read_metadata()
    except Exception as error:
        words = in_brief(error)
        raise InputError(f"{path / METADATA}: cannot be read: {words}; {WHOLE}") from None
