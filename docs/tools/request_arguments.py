"""A griffe extension that documents the fields of a request as arguments of its functions."""

from __future__ import annotations

from importlib import import_module
from inspect import Parameter, signature
from typing import Any

import griffe

from pipeloom.planner.requests.fields import docstrings


class RequestArguments(griffe.Extension):
    """Replaces the argument of ``@takes(OptimizeRequest)`` by its fields and their docstrings."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if not isinstance(obj, griffe.Function):
            return
        found = next(
            (each for each in obj.decorators if str(each.value).startswith("takes(")), None
        )
        if found is None or obj.docstring is None:
            return
        module = import_module(obj.module.path)
        request = getattr(module, str(found.value).removeprefix("takes(").removesuffix(")"))
        arguments, words = signature(request).parameters, docstrings(request)
        obj.parameters = griffe.Parameters(*map(_shown, arguments.values()))
        lines = [f"- `{name}`: {words[name]}" for name in arguments if name in words]
        obj.docstring.value = "\n".join([obj.docstring.value, "", *lines])


def _shown(one: Parameter) -> griffe.Parameter:
    keyword = one.kind is Parameter.KEYWORD_ONLY
    kinds = griffe.ParameterKind
    return griffe.Parameter(
        one.name,
        annotation=str(one.annotation),
        kind=kinds.keyword_only if keyword else kinds.positional_or_keyword,
        default=None if one.default is Parameter.empty else repr(one.default),
    )
