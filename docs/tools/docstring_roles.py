"""A griffe extension that translates Sphinx roles and literals in docstrings to Markdown."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|data|func|meth|mod|attr):`~?([^`]+)`")
LITERAL = re.compile(r"``([^`]+)``")


class DocstringRoles(griffe.Extension):
    """Rewrites each docstring when it is loaded: ``:func:`simulate``` becomes plain code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = LITERAL.sub(r"`\1`", ROLE.sub(_last_part, obj.docstring.value))


def _last_part(match: re.Match[str]) -> str:
    """Drop the path of a name of pipeloom."""
    ours = match[1].startswith((".", "pipeloom."))
    return f"`{match[1].rpartition('.')[2] if ours else match[1]}`"
