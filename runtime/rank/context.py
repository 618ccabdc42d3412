"""The context of one rank: program, options and resources."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pipeloom.ir.model.program import Program

from ..measure.memory import Memory
from ..stages.store import StageStore
from ..transport import Routes, Transport
from .options import PipelineOptions
from .role import RankRole


@dataclass(frozen=True, slots=True, eq=False)
class RankContext:
    """The program, options and resources that all parts of a rank's pipeline use.

    ``role``: the stages that the rank runs and owns. ``store``: the modules of these stages, on
    ``device``. ``memory``: counts bytes of activations. ``relays``: whether the gradient norm is
    summed by messages from rank to rank and optimizers step before it is known (post-validation).
    ``routes``: the connections that ``transport`` has opened.
    """

    program: Program
    role: RankRole
    options: PipelineOptions
    store: StageStore
    transport: Transport
    memory: Memory
    device: torch.device
    relays: bool
    routes: Routes

    @property
    def waits_for_norm(self) -> bool:
        """Whether optimizers step only after all ranks have received the norm of all gradients.

        False with post-validation, and if no norm is needed.
        """
        return self.options.needs_norm and not self.relays
