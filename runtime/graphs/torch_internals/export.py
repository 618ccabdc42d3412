"""The joint graph of a computation, exported without computing anything.

What loads torch.compile's parts is imported where it is used: runs of no graphs start without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NoReturn

import torch
import torch._meta_registrations as meta
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.compiler import set_stance as as_written  # what torch.compile has made does not run
from torch.utils import checkpoint

from .errors import TraceError, why
from .random_numbers import DRAWN, SEEDS, TRACING, undrawn


@dataclass(frozen=True, slots=True)
class Source:
    """The place that a graph's input comes from: the ``index``-th argument, or where ``tangent``,
    the gradient of the ``index``-th output."""

    index: int
    tangent: bool = False


@dataclass(frozen=True, slots=True)
class Sink:
    """The meaning of a graph's output: the ``index``-th output, or for ``of`` ``"update"`` or
    ``"gradient"`` the new value or the gradient of the ``index``-th argument."""

    of: str
    index: int


@dataclass(frozen=True, slots=True)
class TracedFunction:
    """A forward and its backward in one graph of ATen calls, without in-place operations.

    ``sources``: of each placeholder, in the graph's order; ``sinks``: of each of ``results``, the
    values that the graph gives, which are nodes.
    """

    graph: fx.Graph
    module: fx.GraphModule
    sources: list[Source]
    results: list[fx.Node]
    sinks: list[Sink]


class _Computation(nn.Module):
    """A function as a module without parameters: all that it computes with are arguments."""

    def __init__(self, function: Callable[..., Sequence[Tensor]]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *arguments: Tensor) -> Sequence[Tensor]:
        before = torch.initial_seed()
        found = self._function(*arguments)
        if torch.initial_seed() != before:  # told here: torch puts its state back after a trace
            raise TraceError(DRAWN)
        return found


def export_joint(
    function: Callable[..., Sequence[Tensor]], arguments: Sequence[Tensor]
) -> TracedFunction:
    """The joint graph of ``function``, which takes tensors and gives a tuple of them, for
    arguments of these shapes; nothing is computed.

    Gradients are those of all arguments that require one. Raises TraceError.
    """
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors

    mode = FakeTensorMode(allow_non_fake_inputs=True)  # tensors that are mere attributes
    context = torch._guards.TracingContext(mode)
    tracing = torch._guards.tracing(context)
    with undrawn(), ExitStack() as held, tracing, _as_traced(), as_written("force_eager"):
        try:
            found = aot_export_joint_with_descriptors(
                held, _Computation(function), tuple(arguments), {}
            )
        except TraceError:
            raise
        except Exception as error:
            raise TraceError(why(error)) from error
    module = found.graph_module
    assert isinstance(module, fx.GraphModule)
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    output = module.graph.output_node()
    ends: Any = output.args[0]
    given = zip(ends, output.meta["desc"], strict=True)
    kept = [(node, _sink(d)) for node, d in given if isinstance(node, fx.Node)]
    return TracedFunction(
        module.graph,
        module,
        [_source(node.meta["desc"]) for node in placeholders],
        [node for node, _ in kept],
        [sink for _, sink in kept],
    )


def _source(found: Any) -> Source:
    from torch._functorch._aot_autograd import descriptors as desc

    match found:
        case desc.PlainAOTInput(idx=index):
            return Source(index)
        case desc.TangentAOTInput(output=desc.PlainAOTOutput(idx=index)):
            return Source(index, tangent=True)
    raise TraceError(f"torch traces it with an input that is not known here: {found.expr()}")


def _sink(found: Any) -> Sink:
    from torch._functorch._aot_autograd import descriptors as desc

    match found:
        case desc.PlainAOTOutput(idx=index):
            return Sink("output", index)
        case desc.InputMutationAOTOutput(mutated_input=desc.PlainAOTInput(idx=index)):
            return Sink("update", index)
        case desc.GradAOTOutput(grad_of=desc.PlainAOTInput(idx=index)):
            return Sink("gradient", index)
    raise TraceError(f"torch traces it with an output that is not known here: {found.expr()}")


_grouped = meta._meta_grouped_mm_common


def _grouped_in_any(a: Tensor, b: Tensor, *more: Any, **named: Any) -> Tensor:
    """The shape of a grouped product; torch's rule refuses dtypes that its CPU kernel takes."""
    narrow = torch.bfloat16
    found: Tensor = _grouped(a.to(narrow), b.to(narrow), *more, **named)
    return found.to(a.dtype)


def _checkpointed(*_: Any, **__: Any) -> NoReturn:
    raise TraceError("it computes a part again in its backward (torch.utils.checkpoint)")


_REPLACED: list[tuple[Any, str, Any]] = [
    (checkpoint, "_checkpoint_without_reentrant_generator", _checkpointed),
    (checkpoint, "CheckpointFunction", SimpleNamespace(apply=_checkpointed)),
    *SEEDS,
    (meta, "_meta_grouped_mm_common", _grouped_in_any),
]


def run_as_written() -> None:
    """From now on what torch.compile has made runs as it was written while torch traces, which
    would raise an error."""
    import torch._dynamo.config

    torch._dynamo.config.error_on_nested_fx_trace = False


@contextmanager
def _as_traced() -> Iterator[None]:
    """A context in which what a graph does not do is refused, and shapes are known that torch has
    no rule for."""
    before = [(place, name, getattr(place, name)) for place, name, _ in _REPLACED]
    TRACING.append(True)
    try:
        for place, name, other in _REPLACED:
            setattr(place, name, other)
        yield
    finally:
        TRACING.pop()
        for place, name, own in before:
            setattr(place, name, own)
