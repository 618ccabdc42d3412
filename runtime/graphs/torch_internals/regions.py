"""Regions that a model checkpoints, marked in a trace and run there as any other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils import checkpoint

from .errors import TraceError

_REGION = "pipeloom_region"  # in a node's meta: the checkpointed region that it is of


def region_of(node: fx.Node) -> object | None:
    """The region that the model checkpoints of which the node is, None where it is of none."""
    found: object | None = node.meta.get(_REGION)
    return found


class _Region:
    """Marks what is traced within it, but for what ``policy`` saves."""

    def __init__(self, policy: Callable[..., Any] | None = None) -> None:
        self._policy = policy

    def __enter__(self) -> None:
        mode = get_proxy_mode()
        self._graph = None if mode is None else mode.tracer.graph
        self._before = set() if self._graph is None else set(self._graph.nodes)

    def __exit__(self, *_: object) -> None:
        for node in self._graph.nodes if self._graph is not None else ():
            if node not in self._before and not self._saves(node):
                node.meta[_REGION] = self

    def _saves(self, node: fx.Node) -> bool:
        if self._policy is None or not isinstance(node.target, torch._ops.OpOverload):
            return False
        context = checkpoint.SelectiveCheckpointContext(is_recompute=False)
        found = self._policy(context, node.target, *node.args, **node.kwargs)
        return found in _SAVING


_SAVING = (checkpoint.CheckpointPolicy.MUST_SAVE, checkpoint.CheckpointPolicy.PREFER_SAVE)


def _without_reentrant(
    function: Any,
    preserves: bool = True,
    contexts: Callable[[], tuple[Any, Any]] = checkpoint.noop_context_fn,
    *settings: Any,
    **more: Any,
) -> Iterator[None]:
    """In place of what checkpoints a region by hooks on saved tensors."""
    with _Region(getattr(contexts()[0], "policy_fn", None)):
        yield


class _Reentrant:
    """In place of the function that runs a region in its backward."""

    @staticmethod
    def apply(function: Callable[..., Any], _: bool, *arguments: Any) -> Any:
        if not any(isinstance(x, Tensor) and x.requires_grad for x in arguments):
            raise TraceError(
                "a reentrant checkpoint of it has no input that needs a gradient, so nothing within"
                " gets one"
            )
        with _Region():
            return function(*arguments)


CHECKPOINTS: list[tuple[Any, str, Any]] = [
    (checkpoint, "_checkpoint_without_reentrant_generator", _without_reentrant),
    (checkpoint, "CheckpointFunction", _Reentrant),
]
"""What runs a region again, and what is put in its place."""
