"""What the tests of the command line share."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SRC = Path(__file__).parents[3] / "src"
# for processes of their own: this checkout's pipeloom
ENVIRONMENT = os.environ | {"PYTHONPATH": str(SRC)}


@dataclass(frozen=True)
class Done:
    """What one command came to."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        value = json.loads(self.out)
        assert isinstance(value, dict)
        return value


Command = Callable[..., Done]


def profile_document(**changes: Any) -> dict[str, Any]:
    """Two ranks, one stage each, T_F = T_B = T_W = 1; ``None`` takes a key out."""
    stage = {"t_f": 1.0, "t_b": 1.0, "t_w": 1.0, "m_b": 1.0, "m_w": 0.5}
    document = {
        "format": "pipeloom.profile",
        "version": 1,
        "name": "small",
        "stages": [stage, dict(stage)],
        "ranks": 2,
        "t_comm": 0.0,
    } | changes
    return {key: value for key, value in document.items() if value is not None}
