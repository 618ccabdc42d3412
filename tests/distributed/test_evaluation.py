"""Evaluations give one process's outputs, and training goes on as if there had been none."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from pipeloom.compiler import compile_schedule
from pipeloom.compiler.passes.deadlock_check import prove
from pipeloom.ir.model.links import Link
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.program import Compute, Program, Receive, TensorKind
from pipeloom.runtime.launch.processes import launch
from pipeloom.runtime.pipeline.steps.forward_only import forward_only
from pipeloom.solver.families import ASYNCHRONOUS, build_family
from tests.distributed.cases.evaluation import (
    MoodyTransformer,
    Outcome,
    Variant,
    in_shards,
    on_processes,
    trained,
)
from tests.distributed.cases.gradients import V, schedule
from tests.distributed.cases.remat import given_up
from tests.support.families import families_of
from tests.support.hub import on_threads

MICROBATCHES = 4
ALWAYS = ("1f1b", "zb-v", "chimera", "pipedream", "weipipe-interleave", "wzb1", "fsdp", V)
FOUR = ("dualpipe",)


MOST = ("every step taken back", "recomputed", "two dtypes, weights sent", "shapes vary")
REST = ("random numbers", "offloaded", "two dtypes")


def compiled(family: str, ranks: int) -> Program:
    plan = schedule(family, ranks, MICROBATCHES)
    tied = [] if family in ASYNCHRONOUS else [(0, plan.problem.stages - 1)]
    return compile_schedule(plan, tied=tied)


def check(without: Outcome, evaluated: Outcome, bound: float = 1e-12) -> None:
    assert evaluated.hashes == without.hashes
    assert evaluated.losses == without.losses
    assert evaluated.trace == without.trace
    assert evaluated.apart <= bound


def both(program: Program, source: MoodyTransformer) -> tuple[Outcome, Outcome]:
    return trained(program, source, False), trained(program, source, True)


@pytest.mark.parametrize(
    ("family", "ranks"),
    [
        *((family, 2) for family in ALWAYS),
        *((family, 4) for family in FOUR),
        *(
            pytest.param(family, 2, marks=pytest.mark.slow)
            for family in families_of(2)
            if family not in ALWAYS
        ),
    ],
)
def test_outputs_are_one_processs_and_training_is_undisturbed(family: str, ranks: int) -> None:
    source = MoodyTransformer(ties=family not in ASYNCHRONOUS)
    found = on_threads(both, ranks, (compiled(family, ranks), source), timeout=120)
    for rows in found.values():
        check(*rows)
    assert sum(outcome.compared for _, outcome in found.values()) >= 3 * 9 + 2 * MICROBATCHES


@pytest.mark.parametrize("ranks", [2, 4])
def test_forwards_alone_have_no_deadlock_and_fewer_buffers(ranks: int) -> None:
    for family in families_of(ranks):
        program = compiled(family, ranks)
        for count in (1, MICROBATCHES - 1, MICROBATCHES):
            forwards = forward_only(program, count)
            prove(forwards)
            ops = [i.op for row in forwards.instructions for i in row if isinstance(i, Compute)]
            assert len(ops) == count * program.schedule.problem.stages
            for row, buffers, before in zip(
                forwards.instructions, forwards.buffers, program.buffers, strict=True
            ):
                kinds = {buffer.kind for buffer in buffers}
                assert kinds <= {TensorKind.X, TensorKind.WEIGHT}
                assert len(buffers) <= len(before)
                assert {i.buffer for i in row if isinstance(i, Receive)} == set(range(len(buffers)))


def variants() -> dict[str, Variant]:
    """What else a program or a pipeline may have in it; with random numbers, one process a rank."""
    source, untied = MoodyTransformer(draws=True), MoodyTransformer(draws=True, ties=False)
    narrow = MoodyTransformer(torch.float32, draws=True, ties=False)
    plain = schedule("1f1b", 2, MICROBATCHES)
    stage = StageProfile(2.0, 3.0, 2.0, 1.0, 0.5, t_r=2.0, m_r=0.1, m_o=0.1)
    lent = Profile((stage,) * 2, 2, t_comm=0.1, host_link=Link(0.0, 0.05))
    relieved = build_family("1f1b", lent, MICROBATCHES)
    ahead = compile_schedule(
        schedule("zb-h2", 2, MICROBATCHES), tied=[(0, 1)], post_validation=True
    )
    return {
        "random numbers": (compiled("1f1b", 2), source, {}),
        "every step taken back": (ahead, source, {"clip_grad_norm": 1e-3}),
        "recomputed": (compile_schedule(given_up(relieved, "R")), untied, {}),
        "offloaded": (compile_schedule(given_up(relieved, "O")), untied, {}),
        "two dtypes": (compile_schedule(plain), narrow, {"param_dtype": torch.bfloat16}),
        "two dtypes, weights sent": (
            compile_schedule(schedule("weipipe-interleave", 2, MICROBATCHES)),
            narrow,
            {"param_dtype": torch.bfloat16},
        ),
        "shapes vary": (compiled("zb-h1", 2), source, {"varying_shapes": True}),
    }


@pytest.mark.parametrize("some", [MOST, pytest.param(REST, marks=pytest.mark.slow)], ids=len)
def test_whatever_is_in_a_program_is_undisturbed(some: Sequence[str]) -> None:
    chosen = [variants()[name] for name in some]
    found = launch(on_processes, 2, (chosen,), timeout=240, message_timeout=60)
    for i, (_, _, options) in enumerate(chosen):
        narrow = 0.02 if "param_dtype" in options else 1e-12  # two units of bfloat16
        for rows in found.values():
            check(*rows[i], bound=narrow)


def test_shards_are_whole_for_an_evaluation() -> None:
    program = compile_schedule(schedule("1f1b", 2, MICROBATCHES), data_parallel=True)
    for rows in launch(in_shards, 4, (program,), timeout=240, message_timeout=60).values():
        check(*rows)
