"""Creation of output folders."""

from __future__ import annotations

import os
from pathlib import Path

from pipeloom.ir.errors import InputError


def made(folder: str | os.PathLike[str], option: str = "output") -> Path:
    """Return the path of ``folder``, which is created if it does not exist. Raises InputError with
    the option's name if that fails."""
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        words = f"got {os.fspath(folder)!r} ({error.strerror})"
        raise InputError(f"{option}: expected a folder or a place for one, {words}") from None
    return path
