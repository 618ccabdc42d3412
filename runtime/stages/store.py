"""The stages that a rank runs, and the seam for where their weights come from."""

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
    """The modules that this rank computes with, whose weights live on it for good.

    Of :class:`~pipeloom.runtime.stages.streamed_weights.StreamedStages` it has them while it needs
    them, of :class:`~pipeloom.runtime.stages.fsdp.ShardedStages` a shard between steps. A module is
    asked for once and called in every F: the object stays, its parameters' data may move.
    ``resident``: no step has to ``gather``, ``begin`` or ``settle``.
    """

    resident = True

    def __init__(self, modules: Mapping[int, nn.Module]) -> None:
        self._modules = dict(sorted(modules.items()))

    @property
    def stages(self) -> Sequence[int]:
        """The stages that ``module`` knows, ascending."""
        return list(self._modules)

    def module(self, stage: int) -> nn.Module:
        """The stage's module, the same object at each call."""
        return self._modules[stage]

    def owns(self, stage: int) -> bool:
        """Whether the stage's weights are here in every op; else in F, B and BW alone."""
        return True

    def parameters(self, stage: int) -> Sequence[nn.Parameter]:
        """The parameters that an op of the stage computes with."""
        return list(self._modules[stage].parameters())

    def gather(self) -> None:
        """Fetches parameters that are elsewhere, before each step or trial; all ranks call it."""

    def begin(self) -> None:
        """Before each step."""

    def settle(self, stage: int) -> None:
        """In each step: nothing computes with the stage any more, its optimizer may step."""

    def release(self) -> None:
        """Lets go of parameters that were gathered, outside of steps."""

    def close(self) -> None:
        """Leaves the modules as they were given."""

    @contextmanager
    def computing(self) -> Iterator[None]:
        """A context for ops of no training step, once all is gathered."""
        self.begin()
        try:
            yield
        finally:
            for stage in self.stages:
                self.settle(stage)
            self.release()

    def using(self, stage: int, kind: OpKind) -> AbstractContextManager[object]:
        """A context in which the stage can run an op of this kind. One object, entered again and
        again."""
        return nullcontext()

    def trying(self, stage: int) -> AbstractContextManager[object]:
        """A context in which its module can run, though maybe with other values in its
        parameters."""
        return nullcontext()


def stage_modules(
    stages: Mapping[int, Stage] | Sequence[Stage], needed: Sequence[int], count: int
) -> dict[int, nn.Module]:
    """The modules of the ``count`` stages that are ``needed``; a callable is called for its module.

    A sequence holds all stages or just the needed ones, in order.
    Raises InputError where a needed stage is missing or is not a module.
    """
    table = _table(stages, needed, count)
    missing = [s for s in needed if s not in table]
    if missing:
        raise InputError(f"stages: this rank runs stages {list(needed)}, {missing} are missing")
    return {s: made(table[s], s) for s in needed}


def given_modules(
    stages: Mapping[int, Stage] | Sequence[Stage], needed: Sequence[int], count: int
) -> dict[int, nn.Module]:
    """The stages that are modules as they are given, needed or not."""
    table = _table(stages, needed, count)
    return {s: stage for s, stage in table.items() if isinstance(stage, nn.Module)}


def _table(
    stages: Mapping[int, Stage] | Sequence[Stage], needed: Sequence[int], count: int
) -> Mapping[int, Stage]:
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


# torch's modules whose hooks reduce gradients in each backward pass, by class
REDUCING = {
    "DistributedDataParallel": "DistributedDataParallel",
    "FullyShardedDataParallel": "FullyShardedDataParallel",
    "DDP": "replicate",
    "ReplicateModule": "replicate",
}


def made(stage: Stage, index: int) -> nn.Module:
    """The stage's module. Raises InputError where it is none, or reduces gradients by itself."""
    module = stage if isinstance(stage, nn.Module) else _make(stage)
    if not isinstance(module, nn.Module):
        raise InputError(
            f"stages[{index}]: expected a torch.nn.Module, got {type(module).__name__}"
        )
    _check_reducing(module, index)
    return module


def _make(stage: Callable[[], nn.Module]) -> nn.Module:
    """The function's module, which remembers where its parameters were registered."""
    with registering() as registered:
        module = stage()
        if isinstance(module, nn.Module):
            remember(module, registered)
    return module


def _check_reducing(module: nn.Module, index: int) -> None:
    """Such hooks know neither of microbatches nor of weight gradients that are put off."""
    for path, part in module.named_modules():
        for kind in type(part).__mro__:
            if kind.__name__ in REDUCING and kind.__module__.startswith("torch."):
                raise InputError(
                    f"stages[{index}]: {path or 'it'} is wrapped in {REDUCING[kind.__name__]}, "
                    "which reduces gradients in each microbatch's backward pass: expected the "
                    "module without it, and the processes that it reduces over as data_group"
                )


def check_frozen(parameters: Mapping[str, torch.Tensor], where: str) -> None:
    """Raises InputError, naming it, for one of ``parameters``, which were frozen when the pipeline
    was made, that is trained by now: nobody would send its gradient."""
    for name, parameter in parameters.items():
        if parameter.requires_grad:
            raise InputError(
                f"stages: {where} what is frozen when the Pipeline is made stays so, got "
                f"requires_grad of {name}: make it with {name} trained, and freeze that until then"
            )


def device_of(modules: Iterable[nn.Module]) -> torch.device:
    """The device of the first parameter or buffer; the CPU without any."""
    tensors: list[Tensor] = [t for m in modules for t in (*m.parameters(), *m.buffers())]
    return tensors[0].device if tensors else torch.device("cpu")
