"""Types of inputs: a JSON object, or the file that contains it. It imports no large package."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeAlias

FilePath: TypeAlias = str | os.PathLike[str]
"""The name of a file; ``-`` is standard input."""
Document: TypeAlias = FilePath | Mapping[str, Any]
"""A JSON object, or the name of a file that contains one."""


def named(path: FilePath) -> str:
    """The name of an input file in messages: ``path``, or ``standard input`` for ``-``."""
    return "standard input" if path == "-" else os.fspath(path)
