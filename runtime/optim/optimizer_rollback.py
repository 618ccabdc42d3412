"""An optimizer whose last step can be undone, bit for bit.

Before a step, everything that it changes is copied: the parameters, the optimizer's ``state`` and
the values of ``param_groups``, which is all that an optimizer's ``state_dict`` contains. This works
for any optimizer; the cost is the memory of a second copy of its parameters and its state.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from .optimizer_state import equal


class RevertibleOptimizer:
    """Steps ``optimizer`` such that its last step can be undone and repeated, or postponed.

    In each training step, either :meth:`step` or, to postpone the optimizer's step, :meth:`hold` is
    called. If this decision turns out to be wrong, :meth:`undo` and then :meth:`redo` must be
    called.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._tensors: list[tuple[Tensor, Tensor]] = []  # (parameter or gradient, its copy)
        self._state: dict[Any, dict[Any, Any]] | None = None  # a copy; None: no step
        self._groups: list[dict[str, Any]] = []
        self._stepped: list[dict[str, Any]] = []
        self._since: list[dict[str, Any]] = []
        self._writes_gradients: bool | None = None  # None: unknown before the first step

    def hold(self) -> None:
        """Does not step now, but remembers the current options (``lr`` etc.) for :meth:`redo`."""
        self._tensors, self._state = [], None
        self._groups = self._stepped = self._options()

    @torch.no_grad()
    def step(self) -> None:
        """Copies everything that the optimizer's step changes, then steps."""
        self.hold()  # frees the copies of the last step first
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        gradients = [p.grad for p in parameters if p.grad is not None]
        written = parameters if self._writes_gradients is False else [*parameters, *gradients]
        self._tensors = [(tensor, tensor.clone()) for tensor in written]
        self._state = {
            owner: {key: _copy(value) for key, value in entry.items()}
            for owner, entry in self._optimizer.state.items()
        }
        versions = [gradient._version for gradient in gradients]
        self._optimizer.step()
        self._stepped = self._options()
        if self._writes_gradients is None:
            self._writes_gradients = versions != [gradient._version for gradient in gradients]
        if not self._writes_gradients:
            del self._tensors[len(parameters) :]

    @torch.no_grad()
    def undo(self) -> None:
        """Restores everything that the last step has changed, to the values from before it.

        These are the parameters, the gradients, and the optimizer's state and options (the values
        in its ``param_groups``). Remembers options that were changed since that step; :meth:`redo`
        must be called next.
        """
        self._since = [
            {k: v for k, v in new.items() if k not in old or not equal(v, old[k])}
            for new, old in zip(self._options(), self._stepped, strict=False)
        ]
        self._set(self._groups)
        if self._state is None:
            return
        for tensor, copied in self._tensors:
            tensor.copy_(copied)
        self._optimizer.state.clear()
        self._optimizer.state.update(self._state)

    def redo(self, *, steps: bool) -> None:
        """Steps again if ``steps``, with the current gradients and the options of the undone step.

        Then sets the options that were changed between that step and :meth:`undo` to their changed
        values.
        """
        if steps:
            self._optimizer.step()
        self._set(self._since)

    def _options(self) -> list[dict[str, Any]]:
        """Returns a copy of each of the optimizer's ``param_groups``, without ``params``."""
        return [
            {key: _copy(value) for key, value in group.items() if key != "params"}
            for group in self._optimizer.param_groups
        ]

    def _set(self, values: list[dict[str, Any]]) -> None:
        for group, new in zip(self._optimizer.param_groups, values, strict=False):
            for key, value in new.items():
                if isinstance(group.get(key), Tensor) and isinstance(value, Tensor):
                    group[key].copy_(value)
                else:
                    group[key] = _copy(value)


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else deepcopy(value)
