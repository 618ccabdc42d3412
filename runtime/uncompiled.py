"""Code of the runtime that torch.compile leaves as it is; tried on torch 2.13."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from torch._C._dynamo import eval_frame

Function = TypeVar("Function", bound=Callable[..., Any])


def uncompiled(function: Function) -> Function:
    """Keeps a function, and all that it calls, from being compiled where a compiled module comes by
    it. Compiled, it would take a tensor's version for that of another call.

    What ``torch.compiler.disable`` says, at no cost for a call, and without its import.
    """
    skip = eval_frame._FrameAction.SKIP
    strategy = eval_frame._FrameExecStrategy(skip, skip)
    marked = cast("Any", function)
    eval_frame.set_code_exec_strategy(marked.__code__, strategy)
    marked._torchdynamo_disable = True
    return function
