"""A griffe extension that shows public names in signatures, and types without their checks."""

from __future__ import annotations

import ast
from typing import Any

import griffe

import pipeloom

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
                tree = ast.parse(str(each.annotation), mode="eval")
                each.annotation = ast.unparse(_Unannotated().visit(tree))


class _Unannotated(ast.NodeTransformer):
    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        if ast.unparse(node.value) == "Annotated" and isinstance(node.slice, ast.Tuple):
            return node.slice.elts[0]
        return node
