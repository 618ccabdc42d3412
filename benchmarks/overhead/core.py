"""The amount of code that a step runs: functions before its first instruction, and all files."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

from pipeloom import Pipeline, Profile, StageProfile, build, compile_schedule
from pipeloom.ir import Program
from pipeloom.runtime import launch_ranks
from tools.size import code_lines

RUNTIME = Path(__file__).resolve().parents[2] / "runtime"
RANKS, MICROBATCHES, WIDTH = 2, 4, 8
FIRST = {"RepeatedMessage.post", "HostClock.timed.<locals>.timed"}
"""The functions through which an instruction first enters the runtime."""


def measured() -> dict[str, Any]:
    """Run a step of ZB-H1 and count the runtime's code that it runs.

    ``functions`` and ``files_before``: the numbers of functions and of files that run between
    ``Pipeline.step`` and the first instruction, each on the rank where it is larger. ``files`` and
    ``lines``: the number of files that run in the whole step on either rank, and that of their code
    lines.
    """
    stage = StageProfile(1.0, 1.0, 1.0, m_w=0.5)
    program = compile_schedule(build("zb-h1", Profile((stage,) * RANKS, RANKS), MICROBATCHES))
    found = launch_ranks(_on_a_rank, RANKS, (program,)).values()
    files = {name for _, whole in found for name, _ in whole}
    return {
        "functions": max(len(before) for before, _ in found),
        "files_before": max(len({name for name, _ in before}) for before, _ in found),
        "files": len(files),
        "lines": sum(code_lines((RUNTIME / name).read_text()) for name in files),
    }


def _on_a_rank(program: Program) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """Two sets of pairs (file, function) of the runtime: those that run before the first
    instruction, and all that run in the step."""
    torch.set_num_threads(1)
    modules = [partial(nn.Linear, WIDTH, WIDTH)] * RANKS
    sgd = partial(torch.optim.SGD, lr=0.1)
    pipeline = Pipeline(program, modules, loss=nn.functional.mse_loss, optimizer=sgd)
    x = torch.randn(2 * MICROBATCHES, WIDTH)
    pipeline.step(x, target=x)
    calls: list[tuple[str, str]] = []

    def called(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename).resolve()
        if event == "call" and path.is_relative_to(RUNTIME):
            calls.append((str(path.relative_to(RUNTIME)), frame.f_code.co_qualname))

    sys.setprofile(called)
    pipeline.step(x, target=x)
    sys.setprofile(None)
    pipeline.close()
    first = next(at for at, (_, name) in enumerate(calls) if name in FIRST)
    return set(calls[:first]), set(calls)
