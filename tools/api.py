"""Lists the public names of ``pipeloom`` with their signatures, and the names that its folders
offer to each other.

``python -m tools.api`` writes the list to ``tests/golden/public_names.txt``, with which a test
compares it. Read what has changed before you commit it: CONTRIBUTING.md says which names may
change.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from enum import EnumType
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import pipeloom
from docs.tools.public_names import experimental

NAMES = Path(__file__).parents[1] / "tests" / "golden" / "public_names.txt"
FOLDERS = "ir", "ir.formats", "planner", "report", "runtime", "solver", "web"
OPTIONS = {
    "pipeloom.Pipeline(**options)": "runtime.PipelineOptions",
    "pipeloom.measure(**settings)": "runtime.measure_profile",
    "pipeloom.run(**settings)": "runtime.RunSettings",
    "pipeloom.solve(**changes)": "solver.SolveOptions",
}
"""What defines the keyword arguments that a public signature does not name."""
LISTED = (property, cached_property, classmethod, staticmethod)


class Annotation(str):
    """A type, which is shown without quotes and without the checks of ``Annotated``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return without_checks(self)


def without_checks(annotation: str) -> str:
    """Return the text of a type with ``T`` instead of each ``Annotated[T, ...]``."""
    return ast.unparse(_Unchecked().visit(ast.parse(annotation, mode="eval")))


class _Unchecked(ast.NodeTransformer):
    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        if ast.unparse(node.value) == "Annotated" and isinstance(node.slice, ast.Tuple):
            return node.slice.elts[0]
        return node


def listed() -> str:
    """Return the text of the list."""
    lines: list[str] = []
    public, marked = vars(pipeloom)["__all__"], experimental()
    for name in public:
        lines += described(name, getattr(pipeloom, name), name in marked)
    for title, path in OPTIONS.items():
        folder, _, name = path.partition(".")
        lines.append(signed(title, getattr(import_module(f"pipeloom.{folder}"), name)))
    for folder in FOLDERS:
        own = {*vars(import_module(f"pipeloom.{folder}"))["__all__"]} - {*public}
        lines.append(f"pipeloom.{folder}: {' '.join(sorted(own))}")
    return "\n".join(lines) + "\n"


def described(name: str, thing: Any, marked: bool) -> Iterator[str]:
    """Yield the line of a name, and for a class one line for each public member that it defines."""
    yield signed(name, thing) + "  # experimental" * marked
    bases = getattr(thing, "__mro__", ())
    own = {key for base in bases if base.__module__.startswith("pipeloom") for key in vars(base)}
    for key in sorted(key for key in own if key[0] != "_"):
        member = inspect.getattr_static(thing, key)
        if isinstance(thing, EnumType) and isinstance(member, thing):
            yield f"    {key} = {member.value!r}"
        elif isinstance(member, LISTED) or inspect.isfunction(member):
            yield f"    {signed(key, getattr(thing, key))}"


def signed(name: str, thing: Any) -> str:
    """Return the name with its signature; without it for enums, properties and constants."""
    if not callable(thing) or isinstance(thing, EnumType):
        return name
    try:
        found = inspect.signature(thing)
    except ValueError:  # errors that are created as Python's are
        return name
    parameters = [p.replace(annotation=shown(p.annotation)) for p in found.parameters.values()]
    found = found.replace(parameters=parameters, return_annotation=shown(found.return_annotation))
    return name + re.sub(r" at 0x\w+", "", str(found))


def shown(annotation: Any) -> Any:
    """Return an annotation as it is to be shown in a signature."""
    return Annotation(annotation) if isinstance(annotation, str) else annotation


if __name__ == "__main__":
    NAMES.write_text(listed(), encoding="utf-8")
