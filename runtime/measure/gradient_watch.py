"""Records which parameters get their gradient in B, from autograd, and which in W."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from pipeloom.ir.model.weight_coverage import WeightCoverage

if TYPE_CHECKING:
    from ..executor.stage_runner import StageRunner
    from ..executor.weight_grad_deferral import WeightQueue


class GradientWatch:
    """The observed gradients of one stage, by op.

    In B, a hook on each accumulation node sees the gradients that arrive there.
    """

    def __init__(self) -> None:
        self._parameters: dict[int, tuple[str, int]] = {}  # id -> (name in the stage, elements)
        self._in_b: set[int] = set()
        self._in_w: set[int] = set()

    @contextmanager
    def backward(self, module: nn.Module, queue: WeightQueue) -> Iterator[None]:
        """A context for a B of the stage's ``module``, after which ``queue`` waits for W."""
        hooks = []
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                self._parameters[id(parameter)] = name, parameter.numel()
                node = get_gradient_edge(parameter).node
                # keep the node: otherwise torch creates another one
                hooks.append((node, node.register_prehook(partial(self._seen, id(parameter)))))
        try:
            yield
        finally:
            for _, hook in hooks:
                hook.remove()
        self.weight(queue.parameters())

    def weight(self, parameters: Iterable[int]) -> None:
        """Records that W computes the gradients of parameters with these ids."""
        self._in_w.update(parameters)

    def cut(self, module: nn.Module, in_b: Collection[str], trained: Collection[str]) -> None:
        """Records a B and a W of a stage that runs as graphs.

        ``trained``: names of all parameters whose gradients they compute; ``in_b``: those in B.
        """
        parameters = dict(module.named_parameters())
        for name in trained:
            key = id(parameters[name])
            self._parameters[key] = name, parameters[name].numel()
            (self._in_b if name in in_b else self._in_w).add(key)

    def found(self, stage: int, name: Callable[[int, str], str]) -> WeightCoverage | None:
        """Returns the result with parameters renamed by ``name``; None if no B was observed."""
        if not self._parameters:
            return None
        in_b, in_w = (
            {name(stage, own): n for key, (own, n) in self._parameters.items() if key in ids}
            for ids in (self._in_b, self._in_w - self._in_b)
        )
        return WeightCoverage(stage, in_w, in_b)

    def _seen(self, parameter: int, gradients: tuple[Tensor | None, ...]) -> None:
        if gradients[0] is not None:
            self._in_b.add(parameter)


def covered(runner: StageRunner, name: Callable[[int, str], str]) -> WeightCoverage | None:
    """Ends ``runner.watched`` and returns its result, with parameters renamed by ``name``.

    Returns None if nothing was observed.
    """
    watched, runner.watched = runner.watched, None
    return None if watched is None else watched.found(runner.stage, name)
