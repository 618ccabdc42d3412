"""Excludes code from torch.compile and from traces; tested with torch 2.13."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar, cast

from torch._C._dynamo import eval_frame
from torch.utils._python_dispatch import _disable_current_modes

Function = TypeVar("Function", bound=Callable[..., Any])


def uncompiled(function: Function) -> Function:
    """Excludes a function, and all that it calls, from compilation inside a compiled module.

    Compiled, it would use a tensor's version from another call. Same as ``torch.compiler.disable``,
    without its overhead per call and its import.
    """
    skip = eval_frame._FrameAction.SKIP
    strategy = eval_frame._FrameExecStrategy(skip, skip)
    marked = cast("Any", function)
    eval_frame.set_code_exec_strategy(marked.__code__, strategy)
    marked._torchdynamo_disable = True
    return function


def untraced() -> AbstractContextManager[Any]:
    """A context inside a trace in which tensors are computed as usual."""
    found: AbstractContextManager[Any] = _disable_current_modes()
    return found
