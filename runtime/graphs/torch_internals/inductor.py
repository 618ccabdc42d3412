"""A graph compiled by Inductor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode

from .errors import TraceError, why


@contextmanager
def _with_shapes(mode: FakeTensorMode | None) -> Iterator[None]:
    """A context in which the mode has an environment of shapes, all of them fixed: without one
    Inductor keeps nothing for graphs that are alike."""
    if mode is None:
        yield
        return
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    before, mode.shape_env = mode.shape_env, mode.shape_env or ShapeEnv()
    try:
        yield
    finally:
        mode.shape_env = before


def compiled(
    graph: fx.Graph, module: fx.GraphModule, inputs: Sequence[Tensor]
) -> Callable[[list[Tensor]], Sequence[Tensor]]:
    """``graph`` compiled by Inductor for ``inputs``, which are fake tensors; it takes them in a
    list that it empties. Random numbers are torch's own. Inductor keeps what it made on disk.

    Raises TraceError.
    """
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    own = fx.GraphModule(module, graph)
    mode = torch._guards.detect_fake_mode(inputs)
    settings = config.patch(fallback_random=True)
    try:
        with settings, mode or nullcontext(), torch.no_grad():
            traced = make_fx(own, decomposition_table=select_decomp_table())(*inputs)
            output = traced.graph.output_node()
            ends: Any = output.args[0]
            output.meta["user_visible_output_idxs"] = list(range(len(ends)))
            context = torch._guards.TracingContext(mode)
            with torch._guards.tracing(context), _with_shapes(mode):
                return compile_fx_inner(traced, list(inputs))
    except Exception as error:
        raise TraceError(f"Inductor does not compile it: {why(error)}") from error
