"""At limits that no schedule keeps without recomputation or offload: what is planned keeps them.
That it trains as one process does: `tests/parity`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeloom import Pipeline, Profile, StageProfile, build_family, dump_schedule
from pipeloom.compiler import compile_schedule
from pipeloom.ir import InputError, Link, Placement, Problem, Program, Schedule, verify_schedule
from pipeloom.ir.cost.remat import choice_of
from pipeloom.runtime import Cell, Ledger, Spec, StageInterface, StageRunner
from pipeloom.runtime.executor.weight_grad_deferral import WeightQueue
from pipeloom.solver import solve
from pipeloom.solver.core.relaxations import without_offloading, without_recomputing
from tests.support.hub import on_threads, own
from tests.support.models import TinyTransformer

RANKS, COUNTS = 2, (2, 4, 7)
WIDTH, WIDER, LAYERS, ROWS = 16, 96, 3, 8
MICROBATCHES = 4


class Deep(nn.Module):
    """Layers that save much more than they take in."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(WIDTH, WIDER) for _ in range(LAYERS))
        self.down = nn.ModuleList(nn.Linear(WIDER, WIDTH) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        for up, down in zip(self.up, self.down, strict=True):
            x = x + down(functional.gelu(up(self.norm(x))))
        return x


def profile(lever: str) -> Profile:
    """Of the model's stages, two a rank; memory in bytes, measured with the runtime's own
    ledger."""
    held, weights, kept = sizes()
    stage = StageProfile(2.0, 3.0, 2.0, held, weights, t_r=2.0, m_r=kept, m_o=kept)
    made_of = Profile((stage,) * 2 * RANKS, RANKS, t_comm=0.1, host_link=Link(0.0, 0.05))
    kinds: dict[str, Callable[[Profile], Profile]] = {
        "recompute": without_offloading,
        "offload": without_recomputing,
    }
    return kinds.get(lever, lambda same: same)(made_of)


def sizes() -> tuple[float, float, float]:
    """M_B, M_W, and what is held of a microbatch that is away: the messages of a stage in
    between."""
    memory, module = Ledger(), Deep()
    x, dy = (torch.randn(ROWS, WIDTH) for _ in range(2))
    runner = StageRunner(1, module, memory=memory, last=False, loss=None, seed=torch.ones(()))
    cell = Cell(WeightQueue(memory), StageInterface.one(Spec.of(x)))
    memory.start([module])
    memory.hold(x)
    memory.hold(dy)
    messages = memory.live
    cell.inputs, cell.dy = (x.requires_grad_(),), (dy,)
    runner.forward(cell)
    runner.backward(cell)
    return float(memory.peak), float(memory.live), float(messages)


@cache
def planned(lever: str) -> Schedule:
    """A schedule at a limit that needs a lever: less than M_B of a rank's two stages."""
    made_of = profile(lever)
    stage = made_of.stages[0]
    limit = stage.m_b + 2 * (stage.m_r or stage.m_o or 0.0)
    problem = Problem(made_of, MICROBATCHES, Placement.v(RANKS), (limit,) * RANKS)
    return solve(problem, work_limit=1.0, seed=1)


@pytest.mark.parametrize("lever", ["recompute", "offload", "both"])
def test_what_is_recomputed_or_offloaded_is_held_within_the_limit(lever: str) -> None:
    plan = planned(lever)
    limit = plan.problem.memory_limit[0]
    assert verify_schedule(dump_schedule(plan)) == []
    assert limit < 2 * plan.problem.profile.stages[0].m_b
    assert (choice_of(plan.problem, plan.order) != 0).any()
    peaks = on_threads(_held, RANKS, (compile_schedule(plan),)).values()
    assert all(0 < peak <= limit for peak in peaks), (peaks, limit)


def _pipeline(program: Program) -> Pipeline:
    stages = [Deep for _ in range(2 * RANKS)]
    return Pipeline(program, stages, loss=functional.mse_loss, transport=own())


def _held(program: Program) -> int:
    pipeline = _pipeline(program)
    x, y = ([torch.randn(ROWS, WIDTH) for _ in range(MICROBATCHES)] for _ in range(2))
    pipeline.step(x, target=y)
    pipeline.close()
    return pipeline.peak_memory


def test_recomputation_of_another_model_is_refused_before_the_first_step() -> None:
    program = compile_schedule(planned("recompute"))
    for line in on_threads(_refused, RANKS, (program,)).values():
        assert re.fullmatch(
            r"(rank \d: )?stage \d: expected a microbatch to hold \d+ bytes until its R, as in the "
            r"program's profile, got \d+: profile this model in these stages and shapes, and plan "
            "again",
            line,
        )


def _refused(program: Program) -> str:
    """Rows of another length."""
    pipeline = _pipeline(program)
    x, y = torch.randn(2, MICROBATCHES * ROWS * 2, WIDTH)
    with pytest.raises(InputError) as caught:
        pipeline.step(x, target=y)
    return str(caught.value)


def test_weights_that_go_round_leave_activations_of_one_microbatch_at_a_time() -> None:
    """The first BW of a microbatch comes before the first F of the next one but one."""
    stage = StageProfile(2.0, 2.0, 1.5, activation_bytes=1e3, weight_bytes=1e6)
    profile = Profile((stage,) * RANKS, RANKS, t_comm=0.1)
    plans = [build_family("weipipe-interleave", profile, count) for count in COUNTS]
    programs = [compile_schedule(plan, tied=[(0, RANKS - 1)]) for plan in plans]
    rows = on_threads(_peaks, RANKS, (programs,), timeout=120).values()
    first, *others = (max(each) for each in zip(*rows, strict=True))
    assert max(others) < 1.05 * first


def _peaks(programs: Sequence[Program]) -> list[int]:
    source, found = TinyTransformer(), []
    for program in programs:
        pipeline = Pipeline.from_source(program, source, transport=own())
        inputs, targets = source.batch(0, program.schedule.problem.microbatches)
        pipeline.step(inputs, target=targets)
        for stage in {*pipeline.store.stages} - {*pipeline.modules}:
            away = pipeline.store.module(stage).parameters()
            assert all(p.untyped_storage().nbytes() == 0 for p in away), "weights of another rank"
        pipeline.close()
        found.append(pipeline.peak_memory)
    return found
