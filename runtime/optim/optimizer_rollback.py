"""An optimizer's step that can be taken back, bit for bit.

What a step changes is copied before it: parameters, ``state`` and the values of ``param_groups``,
which is all that an optimizer's ``state_dict`` knows. No step is inverted by arithmetic, so any
optimizer will do; the price is its parameters and its state once more, in buffers that are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any, TypeAlias

import torch
from torch import Tensor

_State: TypeAlias = dict[Any, dict[Any, tuple[Any, Any]]]  # each value with its copy


class RevertibleOptimizer:
    """Steps ``optimizer`` so that the last step can be undone, or holds a step back until later."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._buffers: dict[tuple[object, ...], Tensor] = {}
        self._parameters: list[tuple[Tensor, Tensor]] = []  # with the copy, as below
        self._gradients: list[tuple[Tensor, Tensor]] = []
        self._state: _State | None = None  # None: no step was made
        self._groups: list[dict[str, Any]] = []
        self._stepped: list[dict[str, Any]] = []
        self._since: list[dict[str, Any]] = []
        self._writes_gradients: bool | None = None  # unknown before the first step

    def hold(self) -> None:
        """Makes no step now; :meth:`redo` makes it, with the options that there are then."""
        self._parameters, self._gradients = [], []
        self._state = None
        self._groups = self._stepped = self._values()

    @torch.no_grad()
    def step(self) -> None:
        """Steps the optimizer, once all that it changes is copied."""
        parameters = list(self._trained())
        self._parameters = [(p, self._kept(("p", i), p)) for i, p in enumerate(parameters)]
        gradients = [p.grad for p in parameters if p.grad is not None]
        if self._writes_gradients is not False:
            self._gradients = [(g, self._kept(("g", i), g)) for i, g in enumerate(gradients)]
        self._state = {
            owner: {key: (v, self._copy((id(owner), key), v)) for key, v in entry.items()}
            for owner, entry in self._optimizer.state.items()
        }
        self._groups = self._values()
        versions = [g._version for g in gradients]
        self._optimizer.step()
        self._stepped = self._values()
        if self._writes_gradients is None:
            self._writes_gradients = versions != [g._version for g in gradients]
            if not self._writes_gradients:
                self._gradients = []
                self._buffers = {k: b for k, b in self._buffers.items() if k[0] != "g"}

    def undo(self) -> None:
        """Restores all as before the step, gradients and options too; :meth:`redo` must come
        next."""
        now = self._values()
        self._since = [
            {k: v for k, v in new.items() if k not in old or not _equal(v, old[k])}
            for new, old in zip(now, self._stepped, strict=False)
        ]
        self._set(self._groups)
        if self._state is not None:
            self._restore(self._state)

    def redo(self, *, steps: bool) -> None:
        """Steps again, or leaves it; the options that were set since the first time come back."""
        if steps:
            self._optimizer.step()
        self._set(self._since)

    @torch.no_grad()
    def _restore(self, saved: _State) -> None:
        for tensor, copy in (*self._parameters, *self._gradients):
            tensor.copy_(copy)
        state = self._optimizer.state
        for owner in [owner for owner in state if owner not in saved]:
            del state[owner]
        for owner, entry in saved.items():
            state[owner].clear()
            for key, (value, copy) in entry.items():
                state[owner][key] = value.copy_(copy) if isinstance(value, Tensor) else copy

    def _trained(self) -> Iterator[Tensor]:
        return (p for group in self._optimizer.param_groups for p in group["params"])

    def _values(self) -> list[dict[str, Any]]:
        """A copy of each group without its parameters."""
        return [
            {key: deepcopy(value) for key, value in group.items() if key != "params"}
            for group in self._optimizer.param_groups
        ]

    def _set(self, values: list[dict[str, Any]]) -> None:
        for group, new in zip(self._optimizer.param_groups, values, strict=False):
            for key, value in new.items():
                if isinstance(group.get(key), Tensor) and isinstance(value, Tensor):
                    group[key].copy_(value)
                else:
                    group[key] = deepcopy(value)

    def _copy(self, key: tuple[object, ...], value: Any) -> Any:
        return self._kept(("s", *key), value) if isinstance(value, Tensor) else deepcopy(value)

    def _kept(self, key: tuple[object, ...], tensor: Tensor) -> Tensor:
        """A copy of ``tensor``, in the buffer of the last one."""
        buffer = self._buffers.get(key)
        if buffer is None or (buffer.shape, buffer.dtype) != (tensor.shape, tensor.dtype):
            buffer = self._buffers[key] = torch.empty_like(tensor, requires_grad=False)
        return buffer.copy_(tensor)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return bool(one == other)
