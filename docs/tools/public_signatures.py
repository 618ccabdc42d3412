"""A griffe extension that shows public names in signatures, and types without their checks."""

from __future__ import annotations

from typing import Any

import griffe

import pipeloom
from tools.api import without_checks

NAMES = {
    f"{thing.__module__}.{thing.__qualname__}": name
    for name, thing in ((name, getattr(pipeloom, name)) for name in pipeloom.__all__)
}


class PublicSignatures(griffe.Extension):
    """Names functions as ``pipeloom`` does, and replaces ``Annotated[T, ...]`` by ``T``."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        func.name = NAMES.get(func.path, func.name)
        for each in func.parameters:
            if "Annotated[" in str(each.annotation):
                each.annotation = without_checks(str(each.annotation))
