"""Writing files so that an existing one is replaced at once or not at all."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from .errors import InputError


def write_json(document: dict[str, Any], path: str) -> None:
    """Writes to ``path`` at once or not at all, or to standard output for ``-``."""
    text = json.dumps(document, allow_nan=False) + "\n"
    if path == "-":
        sys.stdout.write(text)
        return
    write_text(text, path)


def write_text(text: str, path: str) -> None:
    """Writes to ``path`` at once or not at all. Raises InputError where it cannot be written."""
    target = Path(path)
    try:
        if target.exists() and not target.is_file():  # a pipe or a device: nothing to replace
            target.write_text(text, encoding="utf-8")
            return
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(target)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
