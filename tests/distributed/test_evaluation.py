"""Evaluations give one process's outputs, and training goes on as if there had been none."""

from __future__ import annotations

import pytest

from pipeloom.compiler import compile_schedule
from pipeloom.compiler.passes.deadlock_check import prove
from pipeloom.ir.model.program import Compute, Program, Receive, TensorKind
from pipeloom.runtime.pipeline.steps.forward_only import forward_only
from pipeloom.solver.families import ASYNCHRONOUS
from tests.distributed.cases.evaluation import (
    MoodyTransformer,
    Outcome,
    trained,
)
from tests.support.families import families_of
from tests.support.hub import on_threads
from tests.support.schedules import schedule

MICROBATCHES = 4
FAMILIES = ("zb-v", "chimera", "pipedream", "weipipe-interleave")


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


@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_are_one_processs_and_training_is_undisturbed(family: str) -> None:
    """Of fewer and more microbatches than are trained, of unlike sizes, with a target or none."""
    source = MoodyTransformer(ties=family not in ASYNCHRONOUS)
    found = on_threads(both, 2, (compiled(family, 2), source), timeout=120)
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
