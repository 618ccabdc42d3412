"""The stages that a rank runs, and the seam for where their weights come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

import torch
from torch import Tensor, nn

from pipeloom.ir.errors import InputError


class StageStore(Protocol):
    """The modules that this rank computes with.

    :class:`ResidentStages` keeps a stage's weights where they are for good. A second kind, for
    weights that travel, would hold modules whose parameters are views into flat buffers: it would
    also be the :class:`~pipeloom.runtime.carriers.Carrier` of the tensor kinds ``w`` and ``dw``,
    pointing ``module(s)``'s parameters at a buffer when ``w s`` has arrived and handing out the
    flat gradient when ``dw s`` is sent. The executor asks for a module once, while it prepares,
    and calls that object in every F: the object must stay, its parameters' data may move.
    """

    @property
    def stages(self) -> Sequence[int]:
        """The stages that ``module`` knows, ascending."""
        ...

    def module(self, stage: int) -> nn.Module: ...


Stage: TypeAlias = nn.Module | Callable[[], nn.Module]


class ResidentStages:
    """Stages whose weights live on this rank for good."""

    def __init__(self, modules: Mapping[int, nn.Module]) -> None:
        self._modules = dict(sorted(modules.items()))

    @classmethod
    def of(
        cls, stages: Mapping[int, Stage] | Sequence[Stage], owned: Sequence[int], count: int
    ) -> ResidentStages:
        """Those of the ``count`` stages that are ``owned``; a callable is called for its module.

        A sequence holds all stages or just the owned ones, in order.
        Raises InputError where an owned stage is missing or is not a module.
        """
        table = _table(stages, owned, count)
        missing = [s for s in owned if s not in table]
        if missing:
            raise InputError(f"stages: this rank runs stages {list(owned)}, {missing} are missing")
        return cls({s: _made(table[s], s) for s in owned})

    @property
    def stages(self) -> Sequence[int]:
        return list(self._modules)

    def module(self, stage: int) -> nn.Module:
        return self._modules[stage]


def _table(
    stages: Mapping[int, Stage] | Sequence[Stage], owned: Sequence[int], count: int
) -> Mapping[int, Stage]:
    if isinstance(stages, Mapping):
        return stages
    if len(stages) == count:
        return dict(enumerate(stages))
    if len(stages) == len(owned):
        return dict(zip(owned, stages, strict=True))
    raise InputError(
        f"stages: expected all {count} stages or the {len(owned)} of this rank, got {len(stages)}"
    )


def _made(stage: Stage, index: int) -> nn.Module:
    module = stage if isinstance(stage, nn.Module) else stage()
    if not isinstance(module, nn.Module):
        raise InputError(
            f"stages[{index}]: expected a torch.nn.Module, got {type(module).__name__}"
        )
    return module


def device_of(modules: Sequence[nn.Module]) -> torch.device:
    """Where the first parameter or buffer lives; the CPU where there is none."""
    tensors: list[Tensor] = [t for m in modules for t in (*m.parameters(), *m.buffers())]
    return tensors[0].device if tensors else torch.device("cpu")
