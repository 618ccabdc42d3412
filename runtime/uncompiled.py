"""Excludes functions from torch.compile, and code from traces; tested with torch 2.13."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar, cast

from torch._C._dynamo import eval_frame
from torch.utils._python_dispatch import _disable_current_modes

Function = TypeVar("Function", bound=Callable[..., Any])


def uncompiled(function: Function) -> Function:
    """Excludes a function, and all functions that it calls, from torch.compile; returns it.

    In a compiled module, the function would otherwise use a tensor's version counter from an
    earlier call. Same as ``torch.compiler.disable``, without its overhead per call and its import.
    """
    skip = eval_frame._FrameAction.SKIP
    strategy = eval_frame._FrameExecStrategy(skip, skip)
    marked = cast("Any", function)
    eval_frame.set_code_exec_strategy(marked.__code__, strategy)
    marked._torchdynamo_disable = True
    return function


def untraced() -> AbstractContextManager[Any]:
    """Returns a context that suspends a trace: operations in it compute tensors as usual."""
    found: AbstractContextManager[Any] = _disable_current_modes()
    return found
