"""The state of modules that a traced forward may have looked at, other than tensors' values.

A graph holds while that is the same: modes, numbers and texts among attributes (a dropout's rate),
which parameters are trained, and which objects they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from .torch_internals import TraceError

_PLAIN = (bool, int, float, str, type(None))


def state_of(module: nn.Module) -> list[object]:
    """The state of a module, equal to that of another moment where its graphs hold still."""
    found: list[object] = []
    for part in module.modules():
        held = part.__dict__
        found += [value for value in held.values() if type(value) in _PLAIN]
        found += [(id(p), p is not None and p.requires_grad) for p in held["_parameters"].values()]
        found += [id(value) for value in held.values() if isinstance(value, Tensor)]
        found += [id(buffer) for buffer in held["_buffers"].values()]
    return found


@contextmanager
def unchanged(module: nn.Module) -> Iterator[None]:
    """A context in which the module's forward is traced, after which its attributes are as before.

    Raises TraceError where the forward sets one: a graph would not.
    """
    parts = [(name, part, dict(part.__dict__)) for name, part in module.named_modules()]
    try:
        yield
        for name, part, before in parts:
            changed = _changed(before, part.__dict__)
            if changed is not None:
                where = f"{name}.{changed}" if name else changed
                raise TraceError(f"its forward sets the attribute {where}")
    finally:
        for _, part, before in parts:
            if _changed(before, part.__dict__) is not None:
                part.__dict__.clear()
                part.__dict__.update(before)


def _changed(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    for key, value in after.items():
        if key not in before or value is not before[key]:
            return key
    return None
