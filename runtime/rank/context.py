"""One rank of a pipeline: what it is to run, on what, and with whom."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pipeloom.ir.model.program import Program

from ..measure.activation_ledger import Memory
from ..stages.store import StageStore
from ..transport import Transport
from .role import Role


@dataclass(frozen=True, slots=True, eq=False)
class Worker:
    """``store`` has the modules of the stages in its ``role``, on ``device``; ``memory`` counts."""

    program: Program
    role: Role
    store: StageStore
    transport: Transport
    memory: Memory
    device: torch.device
