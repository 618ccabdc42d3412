"""A griffe extension that translates docstrings to Markdown: Sphinx roles, literals, names of pages
and lists of arguments."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|data|func|meth|mod|attr):`~?([^`]+)`")
PAGE = re.compile(r"(?:``)?\bdocs/([\w/-]+)\.md\b(?:``)?")
LITERAL = re.compile(r"``([^`]+)``")
ARGUMENTS = re.compile(r"^Arguments:\n((?: {4}.*\n?)+)", re.MULTILINE)
ARGUMENT = re.compile(r"^(\w+):", re.MULTILINE)
DOCS = Path(__file__).parents[1]


class DocstringRoles(griffe.Extension):
    """Rewrites each docstring when it is loaded: ``:func:`simulate``` becomes plain code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            text = ROLE.sub(_last_part, obj.docstring.value)
            text = LITERAL.sub(r"`\1`", PAGE.sub(_link, text))
            obj.docstring.value = ARGUMENTS.sub(_list, text)


def _last_part(match: re.Match[str]) -> str:
    """Drop the path of a name of pipeloom."""
    ours = match[1].startswith((".", "pipeloom."))
    return f"`{match[1].rpartition('.')[2] if ours else match[1]}`"


def _link(match: re.Match[str]) -> str:
    """Link to a page by its title, from ``reference/python.md``."""
    title = (DOCS / f"{match[1]}.md").read_text().partition("\n")[0].removeprefix("# ")
    return f"[{title}](../{match[1]}.md)"


def _list(match: re.Match[str]) -> str:
    """Return the arguments, ``name: text`` each, as a list."""
    return "Arguments:\n\n" + ARGUMENT.sub(r"- `\1`:", dedent(match[1]))
