"""The fields of requests: they are the keyword arguments of a function and the options of its
command.

A request is a frozen dataclass. A field made by :func:`option`, or with the metadata of
:func:`place`, is also on the command line. The docstring below the field is its help text.
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
"""The key under which a field's metadata has its :class:`Option`."""


@dataclass(frozen=True, slots=True)
class Option:
    """The command-line syntax of a field.

    ``metavar``: the name of the value in the help. ``kind``: how the value is parsed and validated.
    ``names``: the option's names, by default ``--field-name``; for a positional argument, its
    metavar. ``action``, ``nargs`` and ``required``: as in argparse. ``group``: the title of the
    option group that contains it in the help; empty for the main group.
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
        """Whether this is a positional argument."""
        return not "".join(self.names).startswith("-")


def option(metavar: str | None = None, kind: Kind = ANY, *, default: Any = None, **how: Any) -> Any:
    """A dataclass field that is a command-line option.

    ``how``: further fields of its :class:`Option`. If ``default`` is a bool, the option is a flag
    without a value.
    """
    if isinstance(default, bool):
        how = {"action": "store_false" if default else "store_true"} | how
    return field(default=default, metadata={OPTION: Option(metavar, kind, **how)})


def place(metavar: str, nargs: str | None = None) -> dict[str, Option]:
    """The metadata of a dataclass field that is a positional argument with the name ``metavar``."""
    return {OPTION: Option(metavar, names=(metavar,), nargs=nargs)}


def options_of(request: type[Request]) -> dict[str, Option]:
    """The :class:`Option` of each field of ``request`` on the command line, by field name."""
    found = {each.name: each.metadata.get(OPTION) for each in fields(request)}
    named = {name: (f"--{name.strip('_').replace('_', '-')}",) for name in found}
    return {
        name: replace(made, names=made.names or named[name])
        for name, made in found.items()
        if made is not None
    }


def docstrings(request: type[Request]) -> dict[str, str]:
    """The docstrings of the fields of ``request`` and its base classes, by the field's name.

    The result lacks the docstrings of a class whose source code is not available.
    """
    found: dict[str, str] = {}
    for each in filter(is_dataclass, reversed(request.__mro__)):
        with suppress(OSError):  # inspect found no source
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
    """Base class of all requests: the arguments of one function, validated at construction.

    Construction raises InputError for an invalid value, or if two options in ``apart`` are both
    given.
    """

    apart: ClassVar[Sequence[tuple[str, str]]] = ()
    """Pairs of fields that exclude each other."""
    described: ClassVar[tuple[str, str]] = ("", "")
    """The title of an option group, and the text below that title in the help."""

    def __post_init__(self) -> None:
        for name, made in options_of(type(self)).items():
            if made.kind.check is not None and (value := getattr(self, name)) is not None:
                made.kind.check(name, value)
        for one, other in self.apart:
            first, second = getattr(self, one), getattr(self, other)
            if first not in (None, False) and second not in (None, False):
                raise InputError(f"{other}: expected none with {one} {first!r}, got {second!r}")

    def arguments(self, request: type[Request]) -> dict[str, Any]:
        """The values, by name, of the fields that ``request`` defines; it is a base class of this
        request's class."""
        return {each.name: getattr(self, each.name) for each in fields(request)}


def takes(request: Callable[P, Asked]) -> Callable[[Callable[[Asked], R]], Callable[P, R]]:
    """A decorator for a function whose only argument is a request of type ``request``.

    The decorated function takes the request's fields as arguments, which its signature lists. It
    raises TypeError, like any function, for missing or unknown arguments, and for arguments that
    were removed.
    """
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
