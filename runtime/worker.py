"""One rank of a pipeline: what it is to run, on what, and with whom."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pipeloom.ir.program import Program

from .memory import Memory
from .roles import Role
from .stages import StageStore
from .transport import Transport


@dataclass(frozen=True, slots=True, eq=False)
class Worker:
    """``store`` has the modules of the stages in its ``role``, on ``device``; ``memory`` counts."""

    program: Program
    role: Role
    store: StageStore
    transport: Transport
    memory: Memory
    device: torch.device
