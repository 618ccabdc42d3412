"""Reading of checkpoints that runs nothing of what they hold.

``torch.distributed.checkpoint`` unpickles its table of contents and values that are no tensors, and
a pickle calls what it names.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Generator
from contextlib import contextmanager
from enum import Enum
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import metadata
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import ReadItem

from pipeloom.ir.errors import InputError, in_brief

METADATA = ".metadata"  # which torch.distributed.checkpoint writes last
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
    """An unpickler that knows only the names that make up a table of contents."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _member
        kind = getattr({"torch": torch, metadata.__name__: metadata}.get(module), name, None)
        own = isinstance(kind, type) and kind.__module__ == metadata.__name__
        if own or isinstance(kind, torch.dtype) or (module, name) in _NAMES:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a checkpoint")


def _member(kind: object, name: str) -> Enum:
    """The member of an enumeration: before Python 3.11.4 it is saved as a call of ``getattr``."""
    if not (isinstance(kind, type) and issubclass(kind, Enum) and name in kind.__members__):
        raise pickle.UnpicklingError("builtins.getattr has no place in a checkpoint")
    return kind[name]


def unreadable(path: Path, error: Exception) -> InputError:
    """The line on a file that is not what was written."""
    words = f"cannot be read: {in_brief(error)}; expected a file as run --save wrote it"
    return InputError(f"{path}: {words}")


class _Files(FileSystem):
    """Files whose names are in the errors of those who read them."""

    @contextmanager
    def create_stream(self, path: str | PathLike[str], mode: str) -> Generator[io.IOBase]:
        try:
            with super().create_stream(path, mode) as stream:
                yield stream
        except Exception as error:
            raise unreadable(Path(path), error) from error


class Reader(FileSystemReader):
    """A reader of a folder whose table of contents may hold names of torch's own alone."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.fs = _Files()

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Raises UnpicklingError for other names."""
        with (Path(self.path) / METADATA).open("rb") as file:
            found = _Unpickler(file).load()
        if not isinstance(found, Metadata):
            raise pickle.UnpicklingError(f"expected a table of contents, got {type(found)}")
        found.storage_meta = found.storage_meta or StorageMeta()
        found.storage_meta.load_id = self.load_id
        return found


class Planner(DefaultLoadPlanner):
    """Whose values that are no tensors are numbers, words, and collections of them."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        torch.load(value, weights_only=True)  # raises for what could run
        value.seek(0)
        super().load_bytes(read_item, value)
