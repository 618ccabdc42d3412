"""The options of a pipeline, and values derived from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import torch
import torch.distributed as dist
from torch import nn

from pipeloom.ir.errors import InputError

from ..stages.mixed_precision import check_floating
from ..stages.tie_detection import Group
from ..transport import Routes, Transport, connect, ending_together, gather_early, made_together
from ..transport import whereabouts as whereabouts_in
from .loss_scale import LossScale

Loss: TypeAlias = Callable[..., Any]  # (output, target, **loss_kwargs) -> scalar loss tensor
MakeOptimizer: TypeAlias = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
StagesAs: TypeAlias = Literal["eager", "aten", "inductor"]
STAGES_AS: tuple[StagesAs, ...] = get_args(StagesAs)
ModelNames: TypeAlias = Callable[[int, str], str]  # (stage, name in it) -> name in the model
NormGroups: TypeAlias = Mapping[str, dist.ProcessGroup]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    """The keyword arguments of :class:`~..pipeline.pipeline.Pipeline`, documented there.

    Raises InputError for a dtype that is not floating-point, a loss that is not callable, an
    optimizer instead of a function that creates one, an unknown ``stages_as``, and a ``transport``
    together with a ``group``.
    """

    loss: Loss | None = None
    scale_grads: bool = True
    optimizer: MakeOptimizer | None = None
    tied: Sequence[Group] = ()
    skips: Sequence[tuple[int, int]] = ()
    names: ModelNames | None = None
    varying_shapes: bool = False
    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    clip_grad_norm: float | None = None
    norm_groups: NormGroups | None = None
    loss_scale: LossScale | None = None
    post_validation: bool = True
    stages_as: StagesAs = "eager"
    group: dist.ProcessGroup | None = None
    data_group: dist.ProcessGroup | None = None
    transport: Transport | None = None
    device: torch.device | str | None = None
    timeout: float = 300.0
    memory: bool = True
    pace: bool = False
    verify: bool = True
    check: bool = True

    def __post_init__(self) -> None:
        check_floating(param_dtype=self.param_dtype, reduce_dtype=self.reduce_dtype)
        if not (self.loss is None or callable(self.loss)):
            raise InputError(f"loss: expected a function, got {self.loss!r}")
        if not (self.optimizer is None or callable(self.optimizer)):
            kind = type(self.optimizer).__name__
            raise InputError(
                "optimizer: expected a function that makes the optimizer of a stage's parameters, "
                f"such as functools.partial(torch.optim.{kind}, lr=...), got {kind}"
            )
        check_stages_as(self.stages_as)
        if self.transport is not None and self.group is not None:
            raise InputError("transport: expected none together with group, which has other ranks")

    def whereabouts(self) -> tuple[int, int]:
        """Returns this rank and the number of ranks of the pipeline, as a pair."""
        if self.transport is not None:
            return self.transport.rank, self.transport.size
        return whereabouts_in(self.group)

    def made_together(self) -> AbstractContextManager[None]:
        """Returns a context in which each rank creates its part of a pipeline.

        If one rank raises an exception in it, all ranks raise that exception.
        """
        if self.transport is not None:
            return ending_together(self.transport)
        return made_together(self.group, self.timeout)

    def gather_early(self, value: Any) -> list[Any]:
        """Returns the values that the ranks passed, in rank order; all ranks call it.

        It works before the pipeline has a transport. Values are Python literals.
        """
        if self.transport is not None:
            return self.transport.gather(value)
        return gather_early(value, self.group, self.timeout)

    def connect(self, routes: Routes, device: torch.device) -> Transport:
        """Returns a new transport with ``routes``, for the pipeline; all ranks call it.

        It is created from the option ``transport``, or else from the process group.
        """
        if self.transport is not None:
            return self.transport.beside(routes)
        return connect(routes, device, self.group)

    @property
    def needs_norm(self) -> bool:
        """Whether the optimizer step depends on the norm of all gradients."""
        return self.clip_grad_norm is not None or self.loss_scale is not None

    @property
    def sum_dtype(self) -> torch.dtype | None:
        """The dtype in which gradients are summed over ranks; None: their own dtype."""
        return self.reduce_dtype or self.param_dtype


def check_stages_as(given: str) -> None:
    """Raises InputError for an unknown value of ``stages_as``."""
    if given not in STAGES_AS:
        raise InputError(f"stages_as: expected {' or '.join(STAGES_AS)}, got {given}")
