"""Stages whose weights are streamed (sent to the ranks that need them), or in mixed precision.

::

    recv w2.5      into a buffer
    wait recv      the buffer becomes stage 2's weights on this rank
    2F0            allocates the parameters, copies the buffer into them, runs F, frees them
    2BW0           the same; gradients are in .grad until the next D (gradient sum) of stage 2
                   is sent
    send w2.7      from the buffer; the owner sends its parameters themselves

So in addition to the program's buffers, a rank stores the weights that it owns and, during an op,
those of one more stage. In mixed precision, the owner stores each parameter twice. The *masters*
are the parameters' data outside of steps and while the optimizer runs. The parameters that ops use
and that are sent are cast from the masters at the beginning of a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.model.transfers import owned

from ..dtensors import local
from .flat_parameters import WHERE, FlatWeights, bind, common_dtype, message_of
from .gradient_accumulator import GradientAccumulator
from .mixed_precision import MixedPrecision
from .store import StageStore, check_frozen


class StreamedStages(StageStore):
    """One rank's stages with streamed weights.

    ``modules``: all stages that the rank runs, owns or passes on. Their parameters are moved into
    flat tensors; those of stages owned by other ranks occupy memory only while an op runs.
    ``streamed``: for each stage, its weights and gradients. ``param_dtype``, ``reduce_dtype``: see
    :class:`MixedPrecision`. ``master``: the dtype of all parameters, needed if no stage of this
    rank has parameters. Raises InputError if parameters differ in dtype, or if stages share one.
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
        self.streamed = {
            s: StreamedStage(module, s in mine, self.precision, device)
            for s, module in self._modules.items()
        }

    def owns(self, stage: int) -> bool:
        return self.streamed[stage].owned

    def begin(self) -> None:
        for stage in self.streamed.values():
            stage.begin()

    def settle(self, stage: int) -> None:
        self.streamed[stage].settle()

    def using(self, stage: int, kind: OpKind) -> AbstractContextManager[object]:
        resident = kind is OpKind.W or self.owns(stage)
        return nullcontext() if resident else self.streamed[stage]

    @contextmanager
    def trying(self, stage: int) -> Iterator[None]:
        self.streamed[stage].begin()
        with self.using(stage, OpKind.F):
            yield
        self.settle(stage)


class StreamedStage:
    """The weights of one stage on one rank, which may be received or owned, and their gradients.

    If another rank owns the weights, ops that use them must run with this object as context, as the
    parameters' memory is allocated and contains the weights only within it. ``message``: the layout
    of the weights when they are sent.
    """

    def __init__(
        self, module: nn.Module, owned: bool, precision: MixedPrecision, device: torch.device
    ) -> None:
        parameters = list(module.parameters())
        trained = [p for p in parameters if p.requires_grad]
        self._frozen = {n: p for n, p in module.named_parameters() if not p.requires_grad}
        self.gradients = GradientAccumulator(trained, device, precision.reduce, owned=owned)
        self.owned = owned
        self._here: Tensor | None = None
        self._parameters = parameters
        self._masters: list[Tensor] | None = None
        if precision.mixed:
            for parameter in trained:
                parameter.grad_dtype = precision.master
            if owned:
                self._masters = [local(parameter.detach()) for parameter in parameters]
        self.message = message_of(parameters, precision.param)
        self.weights = FlatWeights(parameters, self.message, device)
        if not owned:
            self.weights.release()
        self.settle()

    @torch.no_grad()
    def begin(self) -> None:
        """Prepares a step: casts the masters to the parameters that ops use.

        Raises InputError if a parameter was frozen at creation and is now trained.
        """
        check_frozen(self._frozen, WHERE)
        self.gradients.begin()
        if self._masters is not None:
            self.weights.copy(self._masters)

    def settle(self) -> None:
        """Ends the stage's part of a step, after its last op.

        Removes the gradients of unused parameters and, in mixed precision, makes the masters the
        parameters' data again.
        """
        self._here = None
        self.gradients.settle()
        if self._masters is not None:
            bind(self._parameters, self._masters)

    def come(self, buffer: Tensor) -> None:
        """Makes the received weights in ``buffer`` those that the next ops use."""
        self._here = buffer

    def __enter__(self) -> None:
        self.weights.allocate()
        if self._here is None:  # for shape inference, before any step
            self.weights.flat.zero_()
        else:
            self.weights.flat.copy_(self._here)

    def __exit__(self, *_: object) -> None:
        self.weights.release()


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
