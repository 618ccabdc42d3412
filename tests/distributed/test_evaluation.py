"""Evaluations give one process's outputs, and training goes on as if there had been none."""

from __future__ import annotations

import pytest
import torch

from pipeloom.compiler import compile_schedule
from pipeloom.compiler.passes.deadlock_check import prove
from pipeloom.ir.model.program import Compute, Program, Receive, TensorKind
from pipeloom.runtime.executor.forward_only import forward_only
from pipeloom.runtime.launch.threads import launch_local
from pipeloom.solver.families import ASYNCHRONOUS
from tests.distributed.cases.evaluation import MoodyTransformer, Outcome, trained
from tests.distributed.cases.gradients import V, schedule
from tests.support.families import families_of

MICROBATCHES = 4
ALWAYS = ("1f1b", "zb-v", "chimera", "pipedream", "weipipe-interleave", "wzb1", "fsdp", V)
FOUR = ("dualpipe", "weights-inside:2", "activations-inside:2")


def compiled(family: str, ranks: int) -> Program:
    plan = schedule(family, ranks, MICROBATCHES)
    tied = [] if family in ASYNCHRONOUS else [(0, plan.problem.stages - 1)]
    return compile_schedule(plan, tied=tied)


def both(program: Program, source: MoodyTransformer) -> tuple[Outcome, Outcome]:
    torch.set_num_threads(1)
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
    found = launch_local(both, ranks, (compiled(family, ranks), source), timeout=120)
    for without, with_evaluations in found.values():
        assert with_evaluations.hashes == without.hashes
        assert with_evaluations.losses == without.losses
        assert with_evaluations.trace == without.trace
        assert with_evaluations.apart <= 1e-12
    assert sum(outcome.compared for _, outcome in found.values()) >= 4 * 9 + 3 * MICROBATCHES


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
