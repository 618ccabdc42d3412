"""The state of modules, except the values of tensors, on which a traced forward may depend.

It consists of the modules' attributes, the contents of lists, dicts and objects in these, hooks,
and the identity and ``requires_grad`` of parameters. A graph is valid while it is unchanged.
"""

from __future__ import annotations

import gc
import types
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from operator import attrgetter, is_
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules

from .torch_internals.errors import TraceError

MOST = 20_000  # maximum number of dicts and lists that are compared per stage
Held: TypeAlias = dict[Any, Any] | list[Any] | deque[Any] | set[Any]

_HELD = (dict, list, deque, set)
_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic, torch.dtype, torch.device)
_CALLED = (types.FunctionType, types.MethodType, partial)
_GLOBAL = [held for name, held in vars(modules).items() if name.startswith("_global_")]
_flags = attrgetter("requires_grad", "_backward_hooks", "_post_accumulate_grad_hooks")


class ModuleState:
    """A snapshot of the state of a module and of its submodules.

    ``constants``: the tensors in this state that are neither parameters nor buffers.
    """

    def __init__(self, module: nn.Module) -> None:
        self._parts, self._parameters = [*module.modules()], [*module.parameters()]
        found = [held for _, held in _holders(module)]
        self._dicts = [held for held in found if isinstance(held, dict)]
        self._rest = [held for held in found if not isinstance(held, dict)]
        own = {id(x) for x in chain(self._parameters, module.buffers())}
        self.constants: list[Tensor] = []
        _, values = self._now()
        tensors = {id(x): x for x in values if isinstance(x, Tensor) and id(x) not in own}
        self.constants = [*tensors.values()]
        self._then = self._now()

    def _now(self) -> tuple[list[int], list[Any]]:
        """Returns the current state: a list of numbers and a list of objects in the modules.

        The numbers are lengths of lists and dicts, and version counters of :attr:`constants`.
        """
        counts = [*map(len, chain(self._dicts, self._rest)), *map(_version, self.constants)]
        values = chain(map(dict.values, self._dicts), self._rest, map(_flags, self._parameters))
        keys = chain.from_iterable(self._dicts)
        return counts, [*keys, *chain.from_iterable(values), *map(type, self._parts)]

    def holds(self) -> bool:
        """Whether the current state equals the snapshot.

        Values such as numbers and strings are compared by value, other objects by identity.
        """
        (counts, now), (before, then) = self._now(), self._then
        return counts == before and (all(map(is_, now, then)) or all(map(_same, now, then)))


@contextmanager
def unchanged(module: nn.Module) -> Iterator[ModuleState]:
    """A context for tracing the module's forward; on exit, restores the state of the module.

    Its value is a snapshot of the state. Objects to which functions such as hooks refer are
    restored as well. Raises TraceError if the forward sets an attribute or modifies a list or dict,
    since a graph would not do so.
    """
    before = [(path, held, _copy(held)) for path, held in _holders(module, called=True)]
    refused: TraceError | None = None
    try:
        yield ModuleState(module)
    except TraceError as error:
        refused = error
    finally:
        changed = _put_back(before)
    if changed is not None:
        raise TraceError(f"its forward sets the attribute {changed}") from refused
    if refused is not None:
        raise refused


Copy: TypeAlias = dict[Any, Any] | list[Any]


def _put_back(before: Sequence[tuple[str, Held, Copy]]) -> str | None:
    """Restores the contents of dicts and lists, given as (path, dict or list, copy of it).

    Returns the path of the first value that had changed, or None if nothing had.
    """
    first: str | None = None
    for path, held, copy in before:
        changed = _changed(copy, _copy(held))
        if changed is not None:
            first = first or f"{path}.{changed}".strip(".")
            held.clear()
            if isinstance(held, (dict, set)):
                held.update(copy)
            else:
                held.extend(copy)
    return first


def _holders(module: nn.Module, *, called: bool = False) -> list[tuple[str, Held]]:
    """Returns all dicts and lists in a module and in its hooks, each with its path.

    ``called``: whether to include those to which functions refer.
    """
    hooks = [held for p in module.parameters() for held in _flags(p)[1:]]
    found: list[tuple[str, Held]] = []
    seen: set[int] = set()
    stack: list[tuple[str, Any]] = [("", module), ("torch.nn", _GLOBAL), ("hooks", hooks)]
    while stack and len(found) < MOST:
        path, value = stack.pop()
        if isinstance(value, (*_PLAIN, Tensor)) or id(value) in seen:
            continue
        seen.add(id(value))
        held = _within(value, called=called)
        if isinstance(held, _HELD):
            seen.add(id(held))
            found.append((path, held))
        stack += _named(path, held)
    return found


def _within(value: Any, *, called: bool) -> Held | tuple[Any, ...]:
    """Returns the values inside ``value``.

    These are the elements of a dict, list, deque, set or tuple (which is itself returned); the
    attributes of a module or of an object of the model, as a dict; and, with ``called``, the
    objects to which a function refers. Returns an empty tuple for other values.
    """
    if isinstance(value, (*_HELD, tuple)):
        return value
    if isinstance(value, _CALLED):
        return _of_call(value) if called else ()
    if isinstance(value, nn.Module) or _of_the_model(type(value)):
        held: Held | tuple[Any, ...] = getattr(value, "__dict__", ())
        return held
    return ()


def _of_the_model(kind: type) -> bool:
    """Whether a class is defined by the model, not by torch, pipeloom or Python."""
    if issubclass(kind, (type, types.ModuleType)):
        return False
    return kind.__module__.partition(".")[0] not in ("torch", "builtins", "pipeloom")


def _of_call(value: Any) -> tuple[Any, ...]:
    """Returns the objects in a function's closure, or those bound by a method or partial."""
    closure = isinstance(value, types.FunctionType)
    return tuple(gc.get_referents(*((value.__closure__ or ()) if closure else (value,))))


_TRANSPARENT = ("_modules", "_parameters", "_buffers")  # dicts that hold a module's attributes


def _named(path: str, held: Held | tuple[Any, ...]) -> list[tuple[str, Any]]:
    if not isinstance(held, dict):
        return [(path, x) for x in held]
    return [
        (path if key in _TRANSPARENT else f"{path}.{key}".strip("."), x) for key, x in held.items()
    ]


def _copy(held: Held) -> Copy:
    return dict(held) if isinstance(held, dict) else [*held]


def _changed(before: Any, after: Any) -> str | None:
    """Returns the first key whose value in a dict has changed, or "" for a list that has changed.

    Returns None if nothing has. ``before`` and ``after``: a copy of the dict or list, and its
    current content.
    """
    if isinstance(before, dict):
        keys = (k for k in {**before, **after} if before.get(k, _NONE) is not after.get(k, _NONE))
        return next(map(str, keys), None)
    return None if len(before) == len(after) and all(map(is_, before, after)) else ""


_NONE = object()


def _same(value: Any, before: Any) -> bool:
    if value is before:
        return True
    return type(value) is type(before) and isinstance(value, _PLAIN) and bool(value == before)


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
