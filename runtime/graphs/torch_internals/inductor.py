"""Compiles a graph by Inductor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, fx

from .errors import TraceError, why


def compiled(
    module: fx.GraphModule, inputs: Sequence[Tensor]
) -> Callable[[list[Tensor]], Sequence[Tensor]]:
    """Returns ``module`` compiled by Inductor to a function, for tensors like ``inputs``.

    ``inputs`` are fake tensors. The function takes its inputs as a list, which it empties. Random
    numbers are the same as without Inductor. Inductor caches the function on disk. Raises
    TraceError if Inductor fails.
    """
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = torch._guards.detect_fake_mode(inputs)
    fixed: AbstractContextManager[object] = nullcontext()
    if mode is not None:  # without a shape environment, Inductor does not cache on disk
        fixed = patch.object(mode, "shape_env", mode.shape_env or ShapeEnv())
    settings = config.patch(fallback_random=True)
    try:
        with settings, mode or nullcontext(), torch.no_grad():
            traced = make_fx(module, decomposition_table=select_decomp_table())(*inputs)
            output = traced.graph.output_node()
            ends: Any = output.args[0]
            output.meta["user_visible_output_idxs"] = list(range(len(ends)))
            with torch._guards.tracing(torch._guards.TracingContext(mode)), fixed:
                return compile_fx_inner(traced, list(inputs))
    except Exception as error:
        raise TraceError(f"Inductor does not compile it: {why(error)}") from error
