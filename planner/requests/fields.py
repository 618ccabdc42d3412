"""Fields of requests: the keyword arguments of a function, and the options of its command.

A request is a frozen dataclass. A field with :func:`option`, or with the metadata of :func:`place`,
is also on the command line, with the docstring below it as help.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import wraps
from itertools import pairwise
from textwrap import dedent
from typing import Any, ClassVar, ParamSpec, TypeVar

from pipeloom.ir.errors import InputError
from pipeloom.ir.removed import telling_removed

from .kinds import ANY, Kind

P = ParamSpec("P")
R = TypeVar("R")
Asked = TypeVar("Asked", bound="Request")
OPTION = "option"
"""The key of :class:`Option` in a field's metadata."""


@dataclass(frozen=True, slots=True)
class Option:
    """A field's command-line syntax.

    ``metavar``: the name of its value in the help. ``names``: the option's names, by default
    ``--field-name``; for a positional argument, its metavar. ``action``, ``nargs`` and
    ``required``: as in argparse. ``group``: the title of its group in the help.
    """

    metavar: str | None = None
    kind: Kind = ANY
    names: tuple[str, ...] = ()
    action: Any = "store"
    nargs: str | None = None
    required: bool = False
    group: str = ""

    @property
    def is_place(self) -> bool:
        """Whether it is a positional argument."""
        return not "".join(self.names).startswith("-")


def option(metavar: str | None = None, kind: Kind = ANY, *, default: Any = None, **how: Any) -> Any:
    """A field with an :class:`Option`; ``how``: its other fields. With a bool as default it is a
    flag."""
    if isinstance(default, bool):
        how = {"action": "store_false" if default else "store_true"} | how
    return field(default=default, metadata={OPTION: Option(metavar, kind, **how)})


def place(metavar: str, nargs: str | None = None) -> dict[str, Option]:
    """The metadata of a field that is a positional argument."""
    return {OPTION: Option(metavar, names=(metavar,), nargs=nargs)}


def options_of(request: type[Request]) -> dict[str, Option]:
    """The fields that are on the command line, by name."""
    found = {each.name: each.metadata.get(OPTION) for each in fields(request)}
    named = {name: (f"--{name.strip('_').replace('_', '-')}",) for name in found}
    return {
        name: replace(made, names=made.names or named[name])
        for name, made in found.items()
        if made is not None
    }


def docstrings(request: type[Request]) -> dict[str, str]:
    """The docstrings of fields by name, including those of base classes."""
    found: dict[str, str] = {}
    for each in filter(is_dataclass, reversed(request.__mro__)):
        with suppress(OSError):  # the source may be missing
            (body,) = ast.parse(dedent(inspect.getsource(each))).body
            assert isinstance(body, ast.ClassDef)
            found |= _docstrings(body.body)
    return found


def _docstrings(body: Sequence[ast.stmt]) -> Iterator[tuple[str, str]]:
    for before, after in pairwise(body):
        if isinstance(before, ast.AnnAssign) and isinstance(after, ast.Expr):
            yield ast.unparse(before.target), " ".join(ast.literal_eval(after.value).split())


@dataclass(frozen=True)
class Request:
    """The arguments of a function; fields are validated when it is constructed."""

    apart: ClassVar[Sequence[tuple[str, str]]] = ()
    """Pairs of mutually exclusive options."""
    described: ClassVar[tuple[str, str]] = ("", "")
    """The title of an option group, and its description."""

    def __post_init__(self) -> None:
        for name, made in options_of(type(self)).items():
            if made.kind.check is not None and (value := getattr(self, name)) is not None:
                made.kind.check(name, value)
        for one, other in self.apart:
            first, second = getattr(self, one), getattr(self, other)
            if first not in (None, False) and second not in (None, False):
                raise InputError(f"{other}: expected none beside {one} {first!r}, got {second!r}")

    def arguments(self, request: type[Request]) -> dict[str, Any]:
        """The values of the fields of ``request``, a base class, by name."""
        return {each.name: getattr(self, each.name) for each in fields(request)}


def takes(request: Callable[P, Asked]) -> Callable[[Callable[[Asked], R]], Callable[P, R]]:
    """A decorator for a function with one request: it then takes the request's fields as
    arguments."""
    expected = inspect.signature(request)

    def decorate(function: Callable[[Asked], R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                expected.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{function.__name__}() {error}") from None
            return function(request(*args, **kwargs))

        shown = expected.replace(return_annotation=function.__annotations__["return"])
        call.__signature__ = shown  # type: ignore[attr-defined]
        return telling_removed(call)

    return decorate
