"""Reads checkpoints without executing code in them; finds complete checkpoints in a folder.

``torch.distributed.checkpoint`` unpickles its metadata and values other than tensors, and a pickle
can execute arbitrary code. The classes here refuse all classes and functions that checkpoints do
not need.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import metadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import ReadItem

from pipeloom.ir.errors import InputError, PipeloomError, in_brief

METADATA = ".metadata"  # written last by torch.distributed.checkpoint
_NAMES = {
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
    ("pathlib", "WindowsPath"),
    ("torch", "Size"),
    ("torch", "device"),
    ("torch.serialization", "_get_layout"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
}


class _Unpickler(pickle.Unpickler):
    """An unpickler that accepts only the classes and functions that metadata contains."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _member
        kind = getattr({"torch": torch, metadata.__name__: metadata}.get(module), name, None)
        own = isinstance(kind, type) and kind.__module__ == metadata.__name__
        if own or isinstance(kind, torch.dtype) or (module, name) in _NAMES:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a checkpoint")


def _member(kind: object, name: str) -> Enum:
    """Returns the member ``name`` of an enumeration; replaces ``getattr`` in a pickle.

    Python before 3.11.4 pickles members of enumerations in this way. Raises UnpicklingError for
    anything else.
    """
    if not (isinstance(kind, type) and issubclass(kind, Enum) and name in kind.__members__):
        raise pickle.UnpicklingError("builtins.getattr has no place in a checkpoint")
    return kind[name]


class Reader(FileSystemReader):
    """A reader of a checkpoint's folder that refuses classes which metadata does not need."""

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Returns the checkpoint's metadata. Raises UnpicklingError for a refused class in it."""
        with (Path(self.path) / METADATA).open("rb") as file:
            found = _Unpickler(file).load()
        if not isinstance(found, Metadata):
            raise pickle.UnpicklingError(f"expected a table of contents, got {type(found)}")
        found.storage_meta = found.storage_meta or StorageMeta()
        found.storage_meta.load_id = self.load_id
        return found


class Planner(DefaultLoadPlanner):
    """A load planner that loads values other than tensors without executing code in them.

    These may be what ``torch.load`` accepts with ``weights_only``: numbers, strings, collections.
    """

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        torch.load(value, weights_only=True)  # raises for anything that could be executed
        value.seek(0)
        super().load_bytes(read_item, value)


def latest(folder: str) -> Path:
    """Returns ``folder`` if it is a checkpoint, else the latest complete checkpoint in it.

    Raises InputError if there is none.
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
    """Returns the paths of the complete checkpoints in ``folder``, by the N in ``step-N``."""
    names = (path for path in folder.glob("step-*") if (path / METADATA).is_file())
    return {int(path.name[5:]): path for path in names if path.name[5:].isdecimal()}


def saved_keys(path: Path) -> Mapping[str, Any]:
    """Returns the keys in the checkpoint ``path``, each mapped to the metadata of its value.

    Raises InputError if the checkpoint cannot be read.
    """
    return _metadata(path).state_dict_metadata


@contextmanager
def told(path: Path, done: str, kind: type[PipeloomError] = InputError) -> Iterator[None]:
    """A context that turns an error of ``torch.distributed.checkpoint`` into one of class ``kind``.

    The message of the new error is one line, with the error of the lowest rank that failed.
    ``path``: the checkpoint. ``done``: "loaded" or "saved", for the message.
    """
    try:
        yield
    except CheckpointException as error:
        rank, (cause, _) = min(error.failures.items())
        raise kind(f"{path}: cannot be {done}: rank {rank}: {in_brief(cause)}") from error


def _metadata(path: Path) -> Metadata:
    try:
        return Reader(path).read_metadata()
    except Exception as error:
        raise InputError(
            f"{path / METADATA}: cannot be read: {in_brief(error)}; expected a file as run --save "
            "wrote it"
        ) from None
