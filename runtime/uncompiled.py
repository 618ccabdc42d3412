"""Marks code of the runtime that torch.compile must not compile; tested with torch 2.13."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from torch._C._dynamo import eval_frame

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
