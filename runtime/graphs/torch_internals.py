"""The private parts of torch that stages as graphs use.

Tried on torch 2.13; the joint export and its descriptors are there since 2.10. All of it is here,
so that another version is looked at in one file.
"""

from __future__ import annotations

import operator
import random
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from threading import RLock, get_ident
from typing import Any

import numpy as np
import torch
import torch._meta_registrations as meta
from torch import Tensor, fx, nn
from torch._functorch._aot_autograd import descriptors as desc
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import checkpoint

from ..fake_tensors import really

Flat = Callable[..., Sequence[Tensor]]

LOCK = RLock()  # tracing patches modules and torch for all threads of the process
_TORCH = str(Path(torch.__file__).parent)
_DATA = (DataDependentOutputException, DynamicOutputShapeException)


class TraceError(Exception):
    """A computation that cannot be a graph; the text says why, and where the model does it."""


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

    def __init__(self, function: Flat) -> None:
        super().__init__()
        self._function = function

    def forward(self, *arguments: Tensor) -> Sequence[Tensor]:
        before = torch.initial_seed()
        found = self._function(*arguments)
        if torch.initial_seed() != before:  # told here: torch puts its state back after a trace
            raise TraceError(_DRAWN)
        return found


def export_joint(
    function: Flat,
    arguments: Sequence[Tensor],
    decompositions: dict[Any, Callable[..., Any]] | None = None,
) -> TracedFunction:
    """The joint graph of ``function``, which takes tensors and gives a tuple of them, for
    arguments of these shapes; nothing is computed.

    Gradients are those of all arguments that require one. Raises TraceError.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)  # tensors that are mere attributes
    context = torch._guards.TracingContext(mode)
    with LOCK, _undrawn(), ExitStack() as held, torch._guards.tracing(context), _as_traced():
        try:
            found = aot_export_joint_with_descriptors(
                held, _Computation(function), tuple(arguments), {}, decompositions=decompositions
            )
        except TraceError:
            raise
        except Exception as error:
            raise TraceError(_why(error)) from error
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


@contextmanager
def _undrawn() -> Iterator[None]:
    """A context after which generators of random numbers are as before.

    Raises TraceError where one was used or seeded: a graph would have drawn once, for all.
    """
    before = random.getstate(), np.random.get_state()
    try:
        for seed in (random.seed, np.random.seed):
            seed(_SEED)  # other than any that a model would set again
        started = _generators()
        yield
        if _generators() != started:
            raise TraceError(_DRAWN)
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


@contextmanager
def unseeded(own: Iterable[torch.Generator], *, alone: bool) -> Iterator[None]:
    """A context after which torch's generators, and a stage's ``own``, are as before.

    Raises TraceError where one was seeded or set to a state: draws alone are calls of the graph.
    ``alone``: no other thread draws meanwhile.
    """
    generators = [*own, *([torch.default_generator] if alone else [])]
    before = [generator.get_state() for generator in generators]
    try:
        started = [generator.manual_seed(_SEED).get_state() for generator in generators]
        yield
        with really():
            pairs = zip(generators, started, strict=True)
            same = all(generator.get_state().equal(state) for generator, state in pairs)
        if not same:
            raise TraceError(_DRAWN)
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)


_SEED = 2_718_281_828
_DRAWN = "its forward draws or seeds random numbers other than by operations on tensors"


def _generators() -> tuple[object, ...]:
    name, keys, *rest = np.random.get_state()
    return random.getstate(), str(name), np.asarray(keys).tobytes(), *rest


def check_constants(graph: fx.Graph, module: nn.Module, known: Iterable[Tensor]) -> None:
    """Raises TraceError where a graph holds tensors that its forward did not make, other than
    those ``known``, or any that needs a gradient: nothing would tell when they change."""
    places = {_place(x) for x in known}
    for node in graph.nodes:
        value = getattr(module, str(node.target), None) if node.op == "get_attr" else None
        if not isinstance(value, Tensor):
            continue
        if value.requires_grad:
            raise TraceError(f"it computes with {_told(value)} that is no parameter of a module")
        if not _made(node) and _place(value) not in places:
            raise TraceError(f"it computes with {_told(value)} that is not of the stage's modules")


def _made(node: fx.Node) -> bool:
    """Whether a constant stands where the forward makes a tensor of numbers."""
    return all(user.target in _LIFTS for user in node.users)


def _told(tensor: Tensor) -> str:
    return f"a tensor of shape {[*tensor.shape]}"


def _place(tensor: Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _source(found: desc.AOTInput) -> Source:
    match found:
        case desc.PlainAOTInput(idx=index):
            return Source(index)
        case desc.TangentAOTInput(output=desc.PlainAOTOutput(idx=index)):
            return Source(index, tangent=True)
    raise TraceError(f"torch traces it with an input that is not known here: {found.expr()}")


def _sink(found: desc.AOTOutput) -> Sink:
    match found:
        case desc.PlainAOTOutput(idx=index):
            return Sink("output", index)
        case desc.InputMutationAOTOutput(mutated_input=desc.PlainAOTInput(idx=index)):
            return Sink("update", index)
        case desc.GradAOTOutput(grad_of=desc.PlainAOTInput(idx=index)):
            return Sink("gradient", index)
    raise TraceError(f"torch traces it with an output that is not known here: {found.expr()}")


def _why(error: BaseException) -> str:
    """The reason why it cannot be traced, with the line of the model that does it."""
    if isinstance(error, _DATA):
        what = f"what it computes depends on values in tensors ({error})"
    else:
        text = str(error).strip().splitlines()
        what = f"{type(error).__name__}: {text[0] if text else ''}"
    return f"{what}{_where(error)}"


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    here = str(Path(__file__).parent)
    own = [f for f in frames if not f.filename.startswith((_TORCH, here)) and f.line]
    if not own:
        return ""
    return f", at {Path(own[-1].filename).name}:{own[-1].lineno}: {own[-1].line}"


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


_grouped = meta._meta_grouped_mm_common


def _grouped_in_any(a: Tensor, b: Tensor, *more: Any, **named: Any) -> Tensor:
    """The shape of a grouped product; torch's rule refuses dtypes that its CPU kernel takes."""
    narrow = torch.bfloat16
    found: Tensor = _grouped(a.to(narrow), b.to(narrow), *more, **named)
    return found.to(a.dtype)


_tracing: list[int] = []  # the thread that traces; others, thread ranks say, seed as ever


def _seeded(own: Callable[..., Any]) -> Callable[..., Any]:
    def seed(*arguments: Any, **named: Any) -> Any:
        if get_ident() in _tracing:
            raise TraceError(_DRAWN)
        return own(*arguments, **named)

    return seed


_SEEDING = {
    torch: ("manual_seed", "seed", "set_rng_state"),
    torch.random: ("manual_seed", "seed", "set_rng_state"),
    torch.cuda: ("manual_seed", "manual_seed_all", "set_rng_state", "set_rng_state_all"),
}
_REPLACED: list[tuple[Any, str, Any]] = [
    (checkpoint, "_checkpoint_without_reentrant_generator", _without_reentrant),
    (checkpoint, "CheckpointFunction", _Reentrant),
    *((p, name, _seeded(getattr(p, name))) for p, names in _SEEDING.items() for name in names),
    (meta, "_meta_grouped_mm_common", _grouped_in_any),
]


@contextmanager
def _as_traced() -> Iterator[None]:
    """A context in which regions that a model checkpoints are marked and run as any other, and
    shapes are known that torch has no rule for."""
    before = [(place, name, getattr(place, name)) for place, name, _ in _REPLACED]
    _tracing.append(get_ident())
    try:
        for place, name, other in _REPLACED:
            setattr(place, name, other)
        yield
    finally:
        _tracing.pop()
        for place, name, own in before:
            setattr(place, name, own)


def draws(node: fx.Node) -> bool:
    """Whether the call takes random numbers."""
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags and not _certain(node)


def _certain(node: fx.Node) -> bool:
    """Whether the call is of attention without dropout, which draws nothing although it might."""
    schema = getattr(node.target, "_schema", None)
    for i, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.name == "dropout_p":
            given = node.args[i] if i < len(node.args) else node.kwargs.get("dropout_p", 0.0)
            return bool(given == 0.0)
    return False


def value_of(node: fx.Node) -> Any:
    """The shape and dtype that the node gives: a fake tensor, or a tuple of them."""
    return node.meta.get("val")


def views(node: fx.Node) -> bool:
    """Whether the node gives tensors that share the memory of its first argument."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        source = node.args[0]
        return isinstance(source, fx.Node) and views(source)
    if node.target in _VIEWS:
        return True
    schema = getattr(node.target, "_schema", None)
    returns = schema.returns if schema is not None else ()
    return any(r.alias_info is not None and not r.alias_info.is_write for r in returns)


_aten = torch.ops.aten
_LIFTS = {_aten.lift_fresh_copy.default, _aten.lift_fresh.default}
_VIEWS = {_aten._unsafe_view.default, _aten._reshape_alias.default}


below_autograd = torch._C._AutoDispatchBelowAutograd  # a context that records nothing


def as_output(tensor: Tensor) -> Tensor:
    """An output of a computation that is to be traced, by itself: one that is a view of something
    else would be handed out as that."""
    found: Tensor = _aten._unsafe_view.default(tensor, tensor.shape)
    return found


_DIRECT: dict[Any, Any] = {  # the same kernels by torch's own bindings, which parse faster
    _aten.mm.default: torch.mm,
    _aten.bmm.default: torch.bmm,
    _aten.addmm.default: torch.addmm,
    _aten.add.Tensor: torch.add,
    _aten.sub.Tensor: torch.sub,
    _aten.mul.Tensor: torch.mul,
    _aten.div.Tensor: torch.div,
    _aten.neg.default: torch.neg,
    _aten.rsqrt.default: torch.rsqrt,
    _aten.cat.default: torch.cat,
    _aten.t.default: torch.t,
    _aten.view.default: torch.Tensor.view,
    _aten.expand.default: torch.Tensor.expand,
    _aten.permute.default: torch.permute,
    _aten.transpose.int: torch.transpose,
    _aten.sum.dim_IntList: torch.sum,
    _aten.mean.dim: torch.mean,
    _aten.native_layer_norm.default: torch.native_layer_norm,
    _aten.gelu.default: torch._C._nn.gelu,
    _aten.silu.default: torch._C._nn.silu,
}


def direct(target: Any) -> Any:
    """The function that an ATen call runs, with as little of Python between as can be."""
    if target in _DIRECT:
        return _DIRECT[target]
    return target._op if isinstance(target, torch._ops.OpOverload) else target


@contextmanager
def _with_shapes(mode: FakeTensorMode | None) -> Iterator[None]:
    """A context in which the mode has an environment of shapes, all of them fixed: without one
    Inductor keeps nothing for graphs that are alike."""
    if mode is None:
        yield
        return
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
        with LOCK, settings, mode or nullcontext(), torch.no_grad():
            traced = make_fx(own, decomposition_table=select_decomp_table())(*inputs)
            output = traced.graph.output_node()
            ends: Any = output.args[0]
            output.meta["user_visible_output_idxs"] = list(range(len(ends)))
            context = torch._guards.TracingContext(mode)
            with torch._guards.tracing(context), _with_shapes(mode):
                return compile_fx_inner(traced, list(inputs))
    except Exception as error:
        raise TraceError(f"Inductor does not compile it: {_why(error)}") from error
