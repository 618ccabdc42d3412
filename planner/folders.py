"""Creation of output folders."""

from __future__ import annotations

import os
from pathlib import Path

from pipeloom.ir.errors import InputError


def made(folder: str | os.PathLike[str], option: str = "output") -> Path:
    """Create ``folder`` and its parents unless they exist, and return its path. Raises InputError
    if that fails. ``option``: the option's name, with which the message begins."""
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        words = f"got {os.fspath(folder)!r} ({error.strerror})"
        raise InputError(f"{option}: expected a folder or a place for one, {words}") from None
    return path
