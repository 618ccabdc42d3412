"""A griffe extension: Sphinx roles and double backticks of our docstrings, as Markdown has them."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|data|func|meth|mod|attr):`~?([^`]+)`")
LITERAL = re.compile(r"``([^`]+)``")


class DocstringRoles(griffe.Extension):
    """Rewrites every docstring as it is loaded: ``:func:`simulate``` becomes plain code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = LITERAL.sub(r"`\1`", ROLE.sub(_last_part, obj.docstring.value))


def _last_part(match: re.Match[str]) -> str:
    """A name of ours without the path to it; others keep theirs."""
    ours = match[1].startswith((".", "pipeloom."))
    return f"`{match[1].rpartition('.')[2] if ours else match[1]}`"
