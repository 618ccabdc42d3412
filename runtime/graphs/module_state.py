"""The state of modules, except the values of tensors, on which a traced forward may depend.

It consists of the modules' attributes, the contents of lists, dicts, sets and objects in these,
hooks, and the identity and ``requires_grad`` of parameters. A graph is valid while it is unchanged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from operator import attrgetter, is_
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules

from .torch_internals.errors import TraceError

Held: TypeAlias = dict[Any, Any] | list[Any] | deque[Any] | set[Any] | tuple[Any, ...]

_HELD = (dict, list, deque, set, tuple)
_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic, torch.dtype, torch.device)
_GLOBAL = [
    held
    for name, held in vars(modules).items()
    if name.startswith("_global_") and isinstance(held, dict)
]
_TRANSPARENT = ("_modules", "_parameters", "_buffers")  # dicts that hold a module's attributes
_NOT_THE_MODELS = ("torch", "builtins", "pipeloom")
_NONE = object()
_flags = attrgetter("requires_grad", "_backward_hooks", "_post_accumulate_grad_hooks")


class ModuleState:
    """A snapshot of the state of a module and of its submodules.

    ``constants``: the tensors in this state that are neither parameters nor buffers.
    """

    def __init__(self, module: nn.Module) -> None:
        self._parts, self._parameters = [*module.modules()], [*module.parameters()]
        hooks = chain.from_iterable(_flags(parameter)[1:] for parameter in self._parameters)
        self._held = [*(held for _, held in _holders(module)), *(h for h in hooks if h is not None)]
        own = {id(x) for x in chain(self._parameters, module.buffers())}
        tensors = {id(x): x for held in self._held for x in _contents(held) if id(x) not in own}
        self.constants = [x for x in tensors.values() if isinstance(x, Tensor)]
        self._then = self._now()

    def _now(self) -> tuple[list[int], list[Any]]:
        """Returns the current state: a list of numbers and a list of objects in the modules.

        The numbers are lengths of lists and dicts, and version counters of :attr:`constants`.
        """
        counts = [*map(len, self._held), *map(_version, self.constants)]
        values = chain(map(_contents, self._held), map(_flags, self._parameters))
        return counts, [*chain.from_iterable(values), *map(type, self._parts)]

    def holds(self) -> bool:
        """Whether the current state equals the snapshot.

        Values such as numbers and strings are compared by value, other objects by identity.
        """
        (counts, now), (before, then) = self._now(), self._then
        return counts == before and (all(map(is_, now, then)) or all(map(_same, now, then)))


@contextmanager
def unchanged(module: nn.Module) -> Iterator[ModuleState]:
    """A context for tracing the module's forward; on exit, restores the state of the module.

    Its value is a snapshot of the state. Raises TraceError if the forward sets an attribute or
    modifies a list or dict in one, since a graph would not do so.
    """
    before = [(path, held, _copy(held)) for path, held in _holders(module)]
    refused: TraceError | None = None
    try:
        yield ModuleState(module)
    except TraceError as error:
        refused = error
    finally:
        changed = [name for name in (_put_back(*each) for each in before) if name is not None]
    if changed:
        raise TraceError(f"its forward sets the attribute {changed[0]}") from refused
    if refused is not None:
        raise refused


def _put_back(path: str, held: Held, copy: dict[Any, Any]) -> str | None:
    """Restores the contents ``copy`` of ``held``, whose path in the modules is ``path``.

    Returns the path of the first value that had changed, or None if nothing had.
    """
    now = _copy(held)
    changed = [key for key in copy | now if copy.get(key, _NONE) is not now.get(key, _NONE)]
    if not changed:
        return None
    assert not isinstance(held, tuple)
    held.clear()
    if isinstance(held, dict):
        held.update(copy)
        return f"{path}.{changed[0]}".strip(".")
    add = held.add if isinstance(held, set) else held.append
    for value in copy.values():
        add(value)
    return path


def _holders(module: nn.Module) -> list[tuple[str, Held]]:
    """Returns the attributes of each part of a module, and lists, dicts and objects in them.

    Each has its path.
    """
    found: list[tuple[str, Held]] = [("torch.nn", held) for held in _GLOBAL]
    for path, part in module.named_modules():
        found.append((path, vars(part)))
        for name, value in vars(part).items():
            held = value if isinstance(value, _HELD) else _attributes(value)
            if held is not None:
                inside = path if name in _TRANSPARENT else f"{path}.{name}".strip(".")
                found.append((inside, held))
    return found


def _attributes(value: Any) -> dict[str, Any] | None:
    """Returns the attributes of an object of the model, such as its configuration.

    Returns None for modules, classes, and objects of torch and Python.
    """
    kind = type(value)
    if isinstance(value, nn.Module | type) or kind.__module__.partition(".")[0] in _NOT_THE_MODELS:
        return None
    return getattr(value, "__dict__", None)


def _contents(held: Held) -> Iterable[Any]:
    return chain(held, held.values()) if isinstance(held, dict) else held


def _copy(held: Held) -> dict[Any, Any]:
    """Returns a copy of a dict; of another collection, a dict with positions as keys."""
    return dict(held) if isinstance(held, dict) else dict(enumerate(held))


def _same(value: Any, before: Any) -> bool:
    if value is before:
        return True
    return type(value) is type(before) and isinstance(value, _PLAIN) and bool(value == before)


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
