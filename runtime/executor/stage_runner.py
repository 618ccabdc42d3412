"""One stage's F, B, W and BW on one microbatch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NotRequired, Protocol, TypedDict, Unpack

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.model.weight_coverage import WeightCoverage

from ..dtensors import PLAIN, arrived, is_dtensor, parts
from ..errors import ChangedInPlaceError, ShapeError
from ..measure.activation_ledger import Held, Memory
from ..measure.gradient_watch import GradientWatch
from ..tensors.forward_state import ChangingBuffers, KeptBuffer
from ..tensors.microbatches import mapped, tensors
from ..tensors.rng_state import RandomState, generators_of
from ..tensors.skip_connections import Skips
from ..tensors.stage_interface import StageInterface
from .delayed_modules import DelayedCalls, around, delayed_modules
from .losses import Judge, parted
from .offload import OffloadedActivations
from .weight_grad_deferral import Deferral, WeightQueue, gradient_edge, lies_in, run_backward

SMALL = 1 << 16  # bytes of an output that is kept until its B, uncounted
Using = Callable[[OpKind], AbstractContextManager[object]]


def unchanged_weights(kind: OpKind) -> AbstractContextManager[object]:
    """The context of ops whose weights are where they are."""
    return nullcontext()


class Clearable(Protocol):
    """The values that a microbatch holds of a stage that is run as graphs."""

    def clear(self) -> None:
        """Lets go of all of it."""
        ...


class Cell:
    """The tensors of one microbatch on one stage of this rank, from before F to after W.

    ``inputs`` and ``options``: F's positional and keyword arguments; ``interface``: what it hands
    on, None of the last stage; ``roots``: where B starts; ``dy``: the gradients that B starts with;
    ``output``, with its graph, and ``dx``: what F and B hand on; ``result``, ``loss`` and
    ``metrics``: the last stage's output and what came of it; ``queue``: None where BW is fused;
    ``delayed``: the calls of modules that put off weight gradients by themselves, None without;
    ``recomputed``: F runs again, with the random numbers from ``state`` on and ``buffers`` as they
    were, and its input is ``held`` until then; ``offloaded``: None where nothing is. ``graphs``:
    what the stage runs as (:mod:`..graphs.graph_runner`), ``kept`` what it then holds from op to
    op.
    """

    __slots__ = (
        "buffers", "delayed", "dx", "dy", "graphs", "held", "inputs", "interface", "kept", "loss",
        "metrics", "offloaded", "options", "output", "queue", "recomputed", "result", "roots",
        "state", "target",
    )  # fmt: skip

    def __init__(
        self,
        queue: WeightQueue | None,
        interface: StageInterface | None = None,
        *,
        recomputed: bool = False,
        offloaded: OffloadedActivations | None = None,
    ) -> None:
        self.queue = queue
        self.interface = interface
        self.recomputed = recomputed
        self.offloaded = offloaded
        self.delayed: DelayedCalls | None = None
        self.graphs: Any = None
        self.kept: Clearable | None = None
        self.clear()

    def clear(self) -> None:
        """Drops all that a step has left."""
        self.inputs: tuple[Any, ...] = ()  # tensors, but for the first stage's
        self.options: Mapping[str, Any] = {}
        self.roots: tuple[GradientEdge | Tensor, ...] = ()
        self.dy: tuple[Tensor, ...] = ()
        self.dx: tuple[Tensor, ...] = ()
        self.output: tuple[Tensor, ...] = ()
        self.result: Any = None
        self.loss: Tensor | None = None
        self.metrics: Any = None
        self.target: Any = None
        self.state: RandomState | None = None
        self.buffers: Sequence[KeptBuffer] = ()
        self.held: Held = ()
        if self.offloaded is not None:
            self.offloaded.clear()
        if self.queue is not None:
            self.queue.clear()
        if self.delayed is not None:
            self.delayed.clear()
        if self.kept is not None:
            self.kept.clear()
            self.kept = None


Run = Callable[[Cell], None]
Runs = tuple[Run, Run, Run]  # F, B and W


class RunnerOptions(TypedDict):
    """The options of a runner.

    ``parameters``: those that ops compute with, by default the module's; ``leaving``: those whose
    memory is given back after each op, or one of them where all lie in one. ``using``: the context
    for an op of each kind; ``skips``: those that start at the stage, end there or come by. The
    ``last`` stage computes ``loss`` and starts its backward with ``seed`` (1 / M for gradients of
    the mean loss).
    """

    memory: Memory
    last: bool
    loss: Judge | None
    seed: Tensor
    parameters: NotRequired[Iterable[nn.Parameter] | None]
    leaving: NotRequired[Sequence[Tensor]]
    using: NotRequired[Using]
    skips: NotRequired[Skips | None]


class StageRunner:
    """Runs one stage; the same object for all microbatches.

    ``bare`` is F of which nothing is counted; ``watched`` sees where weight gradients come from,
    where it is one.
    """

    def __init__(self, stage: int, module: nn.Module, **given: Unpack[RunnerOptions]) -> None:
        self.stage, self.module = stage, module
        self.memory = memory = given["memory"]
        self.buffers = ChangingBuffers(stage, module)
        self.generators = generators_of(module)
        parameters, using = given.get("parameters"), given.get("using", unchanged_weights)
        own = module.parameters() if parameters is None else parameters
        self.leaving = given.get("leaving", ())
        self._deferral = Deferral(own, self.leaving)
        self._last, self._loss, self._seed = given["last"], given["loss"], given["seed"]
        self._seeds: dict[tuple[torch.dtype, int], Tensor] = {}
        self._skips = given.get("skips")
        self.keep_outputs = True
        self.watched: GradientWatch | None = None
        runs: Runs = self._forward, self._backward, self._weight
        self.delayed = delayed_modules(stage, module)
        if self.delayed:
            runs = around(self.delayed, memory, runs, self._weighted)
        forward, backward, weight = runs
        self.bare = within(using(OpKind.F), forward)
        self.forward = within(using(OpKind.F), within(memory.watching(), forward))
        self.backward = within(using(OpKind.B), backward)
        self.weight = within(using(OpKind.W), weight)

    def prepare(self, cell: Cell, inputs: Sequence[Any]) -> None:
        """Makes ready what runs the ops of a microbatch with arguments like ``inputs``: nothing
        where the module does."""

    def calls(self, kind: OpKind) -> Run:
        """The call that runs an op of this kind on a cell; B is BW where the cell has no queue."""
        if kind is OpKind.F:
            return self.forward
        return self.weight if kind is OpKind.W else self.backward

    def covered(self, name: Callable[[int, str], str]) -> WeightCoverage | None:
        """The coverage since ``watched`` was set, which ends with it, by the names that ``name``
        gives; None where nothing was watched."""
        watched, self.watched = self.watched, None
        return None if watched is None else watched.found(self.stage, name)

    def _forward(self, cell: Cell) -> None:
        inputs, queue = cell.inputs, cell.queue
        if self._skips is not None:
            inputs = self._skips.arguments(self.stage, inputs)
        if queue is None:
            output = self.module(*inputs, **cell.options)
        else:
            # left before more is done: every access to a tensor passes it
            with self._deferral.into(queue):
                output = self.module(*inputs, **cell.options)
        if self._last:
            self._finish(cell, output)
        else:
            self._hand_on(cell, output)

    def _backward(self, cell: Cell) -> None:
        if self.watched is None or cell.queue is None:
            self._differentiate(cell)
        else:
            with self.watched.backward(self.module):
                self._differentiate(cell)
        if self.stage > 0:
            cell.dx = tuple([_gradient(x, cell.dy) for x in cell.inputs if x.requires_grad])
        cell.inputs, cell.roots, cell.dy = (), (), ()

    def _differentiate(self, cell: Cell) -> None:
        queue = cell.queue
        try:
            if queue is None or not queue.again:
                run_backward(cell.roots, cell.dy)
            else:
                with self._deferral.into(queue):
                    run_backward(cell.roots, cell.dy)
        except ChangedInPlaceError as error:
            raise self._told(OpKind.BW if queue is None else OpKind.B, error) from error

    def _weight(self, cell: Cell) -> None:
        assert cell.queue is not None
        if self.watched is not None:
            self._weighted(cell.queue.parameters())
        try:
            cell.queue.run()
        except ChangedInPlaceError as error:
            raise self._told(OpKind.W, error) from error

    def _told(self, kind: OpKind, error: ChangedInPlaceError) -> InputError:
        """The error that says of which stage, and of which of its tensors if it is one."""
        changed = _storages_of(error.tensor)
        own = (*self.module.named_parameters(), *self.module.named_buffers())
        names = [f"{name} " for name, tensor in own if changed & _storages_of(tensor)]
        return InputError(f"stage {self.stage}, {kind.name}: {''.join(names[:1])}{error}")

    def _weighted(self, parameters: set[int]) -> None:
        """W computes the gradients of the parameters with these ids."""
        if self.watched is not None:
            self.watched.weight(parameters)

    def _hand_on(self, cell: Cell, output: Any) -> None:
        interface = cell.interface
        assert interface is not None
        outputs = as_tuple(output)
        if self._skips is not None:
            outputs = self._skips.outputs(self.stage, outputs, cell.inputs)
        if not interface.fits(outputs):
            raise interface.unlike(self.stage, StageInterface.of(outputs))
        # what is small stays until B: cheaper than to hold its graph without it
        sizes = zip(outputs, interface.nbytes)  # noqa: B905
        cell.roots = tuple(
            [x if size <= SMALL else gradient_edge(x) for x, size in sizes if x.requires_grad]
        )
        received = self._given_back(cell)
        cell.output = tuple([apart_from(x, received) for x in outputs])

    def _given_back(self, cell: Cell) -> Sequence[Tensor]:
        """Tensors whose memory has another use, or none, before what F made of them is sent."""
        return (*(cell.inputs if self.stage > 0 else ()), *self.leaving)

    def _finish(self, cell: Cell, output: Any) -> None:
        assert self._loss is not None
        loss, cell.metrics = parted(self._loss(output, cell.target))
        if is_dtensor(loss):
            loss = loss.full_tensor()
        loss = arrived(loss)
        key = loss.dtype, self._seed._version  # a loss scale that adapts is written into it
        seed = self._seeds.get(key)
        if seed is None:
            self._seeds = {key: (seed := self._seed.to(loss.dtype, copy=True))}
        cell.roots, cell.dy = (loss,), (seed,)
        cell.loss, cell.target = loss.detach(), None
        self._keep(cell, output)

    def _keep(self, cell: Cell, output: Any) -> None:
        """Keeps what a step is to return apart from the received buffer, which is used again."""
        if self.keep_outputs:
            received = tensors(self._given_back(cell))
            cell.result = mapped(lambda x: apart_from(x.detach(), received), output)


def as_tuple(output: Any) -> tuple[Tensor, ...]:
    """A stage's output as the next one's arguments. Raises ShapeError where it is no tensor."""
    if type(output) is Tensor:
        return (output,)
    outputs = output if isinstance(output, tuple | list) else (output,)
    if not all(isinstance(x, Tensor) for x in outputs):
        raise ShapeError(f"expected a tensor or a tuple of tensors, got {type(output).__name__}")
    return tuple([x if type(x) in PLAIN else _handed_on(x) for x in outputs])


def _handed_on(output: Tensor) -> Tensor:
    """The tensor that can be sent, of one that may be of a subclass."""
    if is_dtensor(output):
        raise ShapeError(
            f"expected this process's part of its output, got a DTensor ({output.placements}): a "
            "layout with use_local_output=True, to_local() or full_tensor() hands it on"
        )
    return arrived(output)


def apart_from(tensor: Tensor, received: Sequence[Tensor]) -> Tensor:
    """A copy where the tensor lies in a received one, whose buffer is freed before it has left."""
    return tensor.clone() if lies_in(tensor, received) else tensor


def _storages_of(tensor: Tensor) -> set[int]:
    return {part.untyped_storage()._cdata for part in parts(tensor)}


def _gradient(x: Tensor, dy: Sequence[Tensor]) -> Tensor:
    """The gradient that B leaves in an input: zeros where the stage does not use it."""
    dx, x.grad = x.grad, None
    return torch.zeros_like(x) if dx is None else apart_from(arrived(dx), dy)


def input_gradients(
    inputs: Sequence[Tensor],
    places: Sequence[int],
    gradients: Sequence[Tensor],
    dy: Sequence[Tensor],
) -> tuple[Tensor, ...]:
    """The gradients of the inputs that need one, of which those at ``places`` have one."""
    if len(gradients) == len(inputs):
        return tuple([apart_from(arrived(x), dy) for x in gradients])
    found = dict(zip(places, gradients, strict=True))
    return tuple(
        [
            apart_from(arrived(found[i]), dy) if i in found else torch.zeros_like(x)
            for i, x in enumerate(inputs)
            if x.requires_grad
        ]
    )


def within(context: AbstractContextManager[object], run: Run) -> Run:
    """``run`` inside of ``context``, entered again and again."""
    if isinstance(context, nullcontext):
        return run

    def inside(cell: Cell) -> None:
        with context:
            run(cell)

    return inside
