"""The ways to give a JSON object: itself, or its file. Imports nothing heavy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeAlias

FilePath: TypeAlias = str | os.PathLike[str]
"""A file's name; ``-`` is standard input."""
Document: TypeAlias = FilePath | Mapping[str, Any]
"""A JSON object, or the file that holds one."""


def named(path: FilePath) -> str:
    """How a message calls an input."""
    return "standard input" if path == "-" else os.fspath(path)
