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

    ``store``: contains the modules of the rank's ``role``, on ``device``. ``memory``: counts bytes
    of activations. ``relays``: whether norms are relayed between ranks and optimizers step before
    the verdict. ``routes``: the connections of ``transport``.
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
        """Whether all ranks wait for the norm of all gradients before they step."""
        return self.options.needs_norm and not self.relays
