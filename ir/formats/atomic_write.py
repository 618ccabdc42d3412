"""Atomic writes: an existing file is either replaced as a whole or not changed at all."""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any

from ..errors import InputError, standard_output


def write_json(document: dict[str, Any], path: str) -> None:
    """Write a JSON object to ``path``, or to standard output if ``path`` is ``-``.

    It is written as by :func:`write_text`, which lists the errors.
    """
    write_text(json.dumps(document, allow_nan=False) + "\n", path)


def write_text(text: str, path: str) -> None:
    """Write ``text`` to ``path`` atomically, or to standard output if ``path`` is ``-``.

    Raises InputError if the file, or OutputError if standard output, cannot be written.
    """
    write_bytes(text.encode(), path)


def write_bytes(data: bytes, path: str) -> None:
    """Write ``data`` to ``path``, like :func:`write_text`."""
    if path == "-":
        with standard_output():
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
        return
    try:
        target = Path(path)
        if target.exists() and not target.is_file():  # a pipe or a device cannot be replaced
            target.write_bytes(data)
        else:
            _replace(data, _resolved(target))
    except OSError as error:
        raise _cannot_write(path, error) from None


def check_writable(path: str) -> None:
    """Raise InputError if :func:`write_text` would fail because of the file or its folder.

    It is called before long computations whose result is to be written.
    """
    target = Path(path)
    try:
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not target.exists():
            with tempfile.TemporaryFile(dir=_resolved(target).parent):
                pass
        elif not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise _cannot_write(path, error) from None


def _resolved(path: Path) -> Path:
    """``path`` with symbolic links resolved. Raises OSError if links form a circle."""
    try:
        return path.resolve()
    except RuntimeError:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None


def _cannot_write(path: str, error: OSError) -> InputError:
    folder = Path(path).parent
    absent = error.errno == errno.ENOENT and not folder.exists()
    why = f"there is no folder {folder}" if absent else error.strerror
    return InputError(f"{path}: cannot be written: {why}")


def _replace(data: bytes, target: Path) -> None:
    exists = target.exists()
    if exists and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    mode = stat.S_IMODE(target.stat().st_mode) if exists else 0o666 & ~_umask()
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        temporary.chmod(mode)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
