"""The modules of a rank's stages, and the interface to their weights, wherever these are stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeAlias

import torch
from torch import Tensor, nn

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.units import counted

from .tie_detection import registering, remember

Stage: TypeAlias = nn.Module | Callable[[], nn.Module]


class StageStore:
    """The modules of the stages that this rank needs, whose weights stay on this rank.

    Subclasses: with :class:`~pipeloom.runtime.stages.streamed_weights.StreamedStages`, weights are
    on this rank only while they are needed; with
    :class:`~pipeloom.runtime.stages.fsdp.ShardedStages`, only a shard is on it between steps. A
    module is requested once and called in every F: the object stays the same, but the data of its
    parameters may move.

    ``resident``: whether weights always stay on this rank, so that steps need not call ``gather``,
    ``begin`` and ``settle``.
    """

    resident = True

    def __init__(self, modules: Mapping[int, nn.Module]) -> None:
        self._modules = dict(sorted(modules.items()))

    @property
    def stages(self) -> Sequence[int]:
        """The stages whose modules this store has, ascending."""
        return list(self._modules)

    def module(self, stage: int) -> nn.Module:
        """Returns the stage's module, the same object at each call."""
        return self._modules[stage]

    def owns(self, stage: int) -> bool:
        """Whether this rank has the stage's weights during all ops of the stage.

        If not, the weights are missing in W.
        """
        return True

    def parameters(self, stage: int) -> Sequence[nn.Parameter]:
        """Returns the parameters that an op of the stage computes with."""
        return list(self._modules[stage].parameters())

    def gather(self) -> None:
        """Fetches parameters from other processes before a step; all ranks call it."""

    def begin(self) -> None:
        """Prepares the weights of all stages for a step, after ``gather``."""

    def settle(self, stage: int) -> None:
        """Prepares a stage's weights and gradients for its optimizer, after its last op."""

    def release(self) -> None:
        """Frees gathered parameters, outside of steps."""

    def close(self) -> None:
        """Restores the modules to the form in which the caller gave them."""

    @contextmanager
    def computing(self) -> Iterator[None]:
        """A context in which ops can run outside of training steps, after ``gather``."""
        self.begin()
        try:
            yield
        finally:
            for stage in self.stages:
                self.settle(stage)
            self.release()

    def using(self, stage: int, kind: OpKind) -> AbstractContextManager[object]:
        """Returns a reusable context in which an op of this kind can use the stage's weights.

        Each op of the stage runs in such a context.
        """
        return nullcontext()

    def trying(self, stage: int) -> AbstractContextManager[object]:
        """Returns a context in which the stage's module can run for shape inference or tracing.

        In this context, the module's parameters may have other values.
        """
        return nullcontext()


def stage_modules(
    stages: Mapping[int, Stage] | Sequence[Stage], needed: Sequence[int], count: int
) -> dict[int, nn.Module]:
    """Returns the modules of the ``needed`` stages, by stage; calls functions to create them.

    ``stages``: a mapping, or a sequence of all ``count`` stages or of exactly the needed ones, in
    order. Raises InputError if a needed stage is missing, is not a module or cannot be split.
    """
    table = stage_table(stages, needed, count)
    missing = [s for s in needed if s not in table]
    if missing:
        raise InputError(f"stages: this rank runs stages {list(needed)}, {missing} are missing")
    return {s: made(table[s], s) for s in needed}


def stage_table(
    stages: Mapping[int, Stage] | Sequence[Stage], needed: Sequence[int], count: int
) -> Mapping[int, Stage]:
    """Returns all given stages, modules or functions that create them, by stage.

    Raises InputError for a sequence whose length is neither ``count`` nor that of ``needed``.
    """
    if isinstance(stages, Mapping):
        return stages
    if len(stages) == count:
        return dict(enumerate(stages))
    if len(stages) == len(needed):
        return dict(zip(needed, stages, strict=True))
    raise InputError(
        f"stages: expected {counted(count, 'stage')} in all or the {len(needed)} of this rank, got "
        f"{len(stages)}"
    )


# torch's modules whose hooks reduce gradients in each backward pass: class name -> usual name
REDUCING = {
    "DistributedDataParallel": "DistributedDataParallel",
    "FullyShardedDataParallel": "FullyShardedDataParallel",
    "DDP": "replicate",
    "ReplicateModule": "replicate",
}


def made(stage: Stage, index: int) -> nn.Module:
    """Returns the module of stage ``index``: ``stage`` itself, or the result of calling it.

    Raises InputError if it is not a module, or if it reduces or delays its weight gradients itself.
    """
    module = stage if isinstance(stage, nn.Module) else _make(stage)
    if not isinstance(module, nn.Module):
        raise InputError(
            f"stages[{index}]: expected a torch.nn.Module, got {type(module).__name__}"
        )
    _check_parts(module, index)
    return module


def _make(stage: Callable[[], nn.Module]) -> nn.Module:
    """Calls the function and records where it registers parameters (:mod:`.tie_detection`)."""
    with registering() as registered:
        module = stage()
        if isinstance(module, nn.Module):
            remember(module, registered)
    return module


def _check_parts(module: nn.Module, index: int) -> None:
    """Raises InputError if a parameter is complex, or a submodule reduces gradients in each
    microbatch or delays W."""
    for name, parameter in module.named_parameters():
        if parameter.is_complex():
            raise InputError(
                f"stages[{index}]: {name} is {parameter.dtype}: expected real parameters, such as "
                "its real and imaginary part (torch.view_as_complex joins them)"
            )
    for path, part in module.named_modules():
        if hasattr(part, "backward_dw") and getattr(part, "need_backward_dw", lambda: True)():
            raise InputError(
                f"stages[{index}]: {path or 'it'} delays its weight gradients until backward_dw: "
                "expected it without delay_wgrad_compute, as W computes them"
            )
        for kind in type(part).__mro__:
            if kind.__name__ in REDUCING and kind.__module__.startswith("torch."):
                raise InputError(
                    f"stages[{index}]: {path or 'it'} is wrapped in {REDUCING[kind.__name__]}, "
                    "which reduces gradients in each microbatch's backward pass: expected the "
                    "module without it, and the processes that it reduces over as data_group"
                )


def check_frozen(parameters: Mapping[str, torch.Tensor], where: str) -> None:
    """Raises InputError if a parameter that was frozen at the pipeline's creation is now trained.

    ``parameters``: the parameters that were frozen, by name; their gradients would not be sent.
    ``where``: the part of the message that says under which condition this is required.
    """
    for name, parameter in parameters.items():
        if parameter.requires_grad:
            raise InputError(
                f"stages: {where} what is frozen when the Pipeline is made stays so, got "
                f"requires_grad of {name}: make it with {name} trained, and freeze that until then"
            )


def device_of(modules: Iterable[nn.Module]) -> torch.device:
    """Returns the device of the first parameter or buffer; the CPU if there is none."""
    tensors: list[Tensor] = [t for m in modules for t in (*m.parameters(), *m.buffers())]
    return tensors[0].device if tensors else torch.device("cpu")
