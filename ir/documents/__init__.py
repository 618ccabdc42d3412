"""Input types: a JSON object, or the file that holds it. Imports nothing heavy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeAlias

FilePath: TypeAlias = str | os.PathLike[str]
"""The name of a file; ``-`` is standard input."""
Document: TypeAlias = FilePath | Mapping[str, Any]
"""A JSON object, or the file that holds one."""


def named(path: FilePath) -> str:
    """The name of an input in messages."""
    return "standard input" if path == "-" else os.fspath(path)
