"""Stages whose weights are streamed, or whose computation uses another dtype.

::

    recv w2.5      into a buffer
    wait recv      the buffer becomes stage 2's weights on this rank
    2F0            allocates the parameters, copies the buffer into them, runs F, frees them
    2BW0           the same; .grad are views of D's buffer (or of a local sum)
    send w2.7      from the buffer; the owner sends its parameters themselves

So in addition to the program's buffers, a rank stores the weights that it owns and, during an op,
those of one more stage. In mixed precision, the owner has two tensors. The masters are the
parameters' data outside of steps and while the optimizer runs. The tensor that ops compute with and
that is sent is cast from the masters at the beginning of a step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from functools import partial

import torch
from torch import Tensor, nn

from pipeloom.ir.errors import InputError
from pipeloom.ir.model import program as ir
from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.model.schedule import Schedule, TransferKind
from pipeloom.ir.model.transfers import owned, previous

from ..tensors.packed_message import Spec
from .flat_parameters import WHERE, FlatWeights, Layout, common_dtype
from .gradient_accumulator import GradientAccumulator
from .mixed_precision import MixedPrecision
from .store import StageStore, check_frozen


class StreamedStages(StageStore):
    """One rank's stages with streamed weights: their store, and the routing of their tensors.

    ``modules``: all stages that the rank runs, owns or passes on. Their parameters are moved into
    flat tensors; those of stages owned by other ranks occupy memory only while an op runs.
    ``param_dtype``, ``reduce_dtype``: see :class:`MixedPrecision`. ``master``: the parameters'
    dtype, in case no stage of this rank has parameters. Raises InputError if parameters differ in
    dtype, or if two stages share one.
    """

    resident = False

    def __init__(
        self,
        modules: Mapping[int, nn.Module],
        schedule: Schedule,
        rank: int,
        device: torch.device,
        *,
        master: torch.dtype | None = None,
        param_dtype: torch.dtype | None = None,
        reduce_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(modules)
        _check_apart(self._modules)
        master = common_dtype(list(self._modules.values()), device, master)
        self.precision = MixedPrecision(
            master, param_dtype or master, reduce_dtype or param_dtype or master
        )
        mine = owned(schedule)[rank]
        self._stages = {
            s: _Stage(module, s in mine, self.precision, device)
            for s, module in self._modules.items()
        }
        self._follow(schedule, rank)

    def by(self, schedule: Schedule, rank: int) -> StreamedStages:
        """Returns a store of the same weights for another schedule with the same owners.

        Called between steps.
        """
        other = copy(self)
        other._follow(schedule, rank)
        return other

    def _follow(self, schedule: Schedule, rank: int) -> None:
        """Sets the transfers to those of the schedule."""
        self._leaving = Counter(
            t.stage
            for t in schedule.transfers
            if t.kind is TransferKind.GRADIENT and t.source == rank
        )
        self._earlier = previous(schedule.transfers)
        self._last = {*range(len(schedule.transfers))}.difference(self._earlier)
        self._received: dict[int, Tensor] = {}  # by transfer, while a program is prepared

    def owns(self, stage: int) -> bool:
        return self._stages[stage].owned

    def begin(self) -> None:
        self._received.clear()  # left from the preparation of programs
        for s, stage in self._stages.items():
            stage.begin(self._leaving[s])

    def settle(self, stage: int) -> None:
        self._stages[stage].settle()

    def using(self, stage: int, kind: OpKind) -> AbstractContextManager[object]:
        return _Use(self._stages[stage], kind)

    @contextmanager
    def trying(self, stage: int) -> Iterator[None]:
        self._stages[stage].begin()
        with self.using(stage, OpKind.F):
            yield
        self.settle(stage)

    def spec(self, kind: ir.TensorKind, stage: int) -> Spec:
        """Shape and dtype of a buffer, which fits the largest stage."""
        stages = self._stages.values()
        if kind is ir.TensorKind.GRADIENT:
            return Spec((max(s.gradient_layout.size for s in stages),), self.precision.reduce)
        return Spec((max(s.layout.size for s in stages),), self.precision.param)

    def fitting(self, tensor: ir.Tensor, buffer: Tensor) -> Tensor:
        stage = self._stages[tensor.stage]
        gradient = tensor.kind is ir.TensorKind.GRADIENT
        return buffer[: (stage.gradient_layout if gradient else stage.layout).size]

    def giving(self, tensor: ir.Tensor, buffer: Tensor) -> Callable[[], None]:
        stage = self._stages[tensor.stage]
        self._received[tensor.index] = buffer
        if tensor.kind is ir.TensorKind.WEIGHT:
            return partial(stage.come, buffer)
        if tensor.index in self._last:
            return partial(stage.gradients.come_home, buffer)
        return partial(stage.gradients.arrive, buffer)

    def taking(self, tensor: ir.Tensor) -> Callable[[], Tensor]:
        stage, earlier = self._stages[tensor.stage], self._earlier[tensor.index]
        came = None if earlier is None else self._received[earlier]
        if tensor.kind is ir.TensorKind.GRADIENT:
            return partial(stage.gradients.leave, came)
        weights = stage.weights.flat if came is None else came
        return lambda: weights


class _Stage:
    """One stage on one rank: its weights, wherever they are stored, and its gradients."""

    def __init__(
        self, module: nn.Module, owned: bool, precision: MixedPrecision, device: torch.device
    ) -> None:
        parameters, spacing = list(module.parameters()), precision.spacing
        trained = [p for p in parameters if p.requires_grad]
        self._frozen = {n: p for n, p in module.named_parameters() if not p.requires_grad}
        self.layout = Layout(parameters, precision.param, spacing)
        self.gradient_layout = Layout(trained, precision.master, spacing)
        self.gradients = GradientAccumulator(self.gradient_layout, device, precision.reduce)
        self.owned = owned
        self._here: Tensor | None = None
        self._masters: FlatWeights | None = None
        if precision.mixed:
            for parameter in trained:
                parameter.grad_dtype = precision.master
            if owned:
                self._masters = FlatWeights(Layout(parameters, precision.master, spacing), device)
        self.weights = FlatWeights(self.layout, device)
        if not owned:
            self.weights.release()
        self.settle()

    @torch.no_grad()
    def begin(self, leaving: int = 0) -> None:
        """Prepares a step in which ``leaving`` D's leave the rank; casts the masters' weights."""
        check_frozen(self._frozen, WHERE)
        self.gradients.begin(leaving)
        if self._masters is not None:
            self.weights.flat.copy_(self._masters.flat)
            self.weights.bind()

    def settle(self) -> None:
        """Makes the masters the parameters' data again, after the stage's last op."""
        self._here = None
        self.gradients.settle()
        if self._masters is not None:
            self._masters.bind()

    def come(self, buffer: Tensor) -> None:
        """Stores received weights; ops use the latest."""
        self._here = buffer

    def fill(self) -> None:
        if self.owned:
            return
        if self._here is None:
            self.weights.allocate()  # for shape inference, before any step
            self.weights.flat.zero_()
        else:
            self.weights.fill(self._here)

    def empty(self) -> None:
        if not self.owned:
            self.weights.release()


class _Use:
    """The context of an op: all kinds but W read the weights, all but F add gradients."""

    __slots__ = ("_kind", "_stage")

    def __init__(self, stage: _Stage, kind: OpKind) -> None:
        self._stage, self._kind = stage, kind

    def __enter__(self) -> None:
        if self._kind is not OpKind.W:
            self._stage.fill()
        if self._kind is not OpKind.F:
            self._stage.gradients.ready()

    def __exit__(self, *_: object) -> None:
        if self._kind is not OpKind.W:
            self._stage.empty()


def _check_apart(modules: Mapping[int, nn.Module]) -> None:
    first: dict[int, tuple[int, str]] = {}
    for stage, module in modules.items():
        for name, parameter in module.named_parameters():
            other, path = first.setdefault(id(parameter), (stage, name))
            if other != stage:
                raise InputError(
                    f"stages: {path} of stage {other} and {name} of stage {stage} are one object; "
                    f"{WHERE} each stage needs a copy, and the pair named in tied"
                )
