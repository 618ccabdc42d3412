"""From a profile of one stage a rank to training with two: each source is cut as it was planned."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage

import pipeloom
from examples.gpt import small
from pipeloom import PlannedSchedule
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.runtime.launch.processes import launch

RANKS, MICROBATCHES, STEPS = 2, 4, 2


def test_a_planned_schedule_runs_what_was_planned_on_its_own_profile() -> None:
    """A script of torch.distributed.pipelining with two stages a rank, round and round; then on
    the profile of these, as a V."""
    found = launch(_planned_twice, RANKS, (), timeout=120, message_timeout=60)
    (placement,) = {placement for placement, _, _ in found.values()}
    assert placement == "v"
    assert {most for _, most, _ in found.values()} == {2 * RANKS}
    ((first,), (again,)) = (
        [losses for losses in of_ranks if losses]
        for of_ranks in zip(*(each for _, _, each in found.values()), strict=True)
    )
    assert first == pytest.approx(again, rel=1e-5)


def _planned_twice() -> tuple[str, int | None, list[list[float]]]:
    torch.set_num_threads(1)
    ones = Profile((StageProfile(1.0, 1.0, 1.0),) * (2 * RANKS), RANKS)
    plan = pipeloom.build("interleaved-1f1b:2", ones, MICROBATCHES)
    schedule, first = _trained(plan)
    inputs, target = map(torch.cat, small().batch(0, MICROBATCHES))
    own = schedule.pipeline.profile(inputs, target=target, repeats=1, warmup=0).profile
    answers: list[Any] = [None]
    if dist.get_rank() == 0:
        answers = [pipeloom.optimize(own, MICROBATCHES, placement="v", time_limit=1).schedule]
    dist.broadcast_object_list(answers, src=0)
    schedule.pipeline.close()
    schedule, again = _trained(answers[0])
    schedule.pipeline.close()
    return answers[0].problem.placement.name, own.max_stages, [first, again]


def _trained(plan: pipeloom.Schedule) -> tuple[PlannedSchedule, list[float]]:
    """The losses of a few steps, where the last stage is."""
    model, problem = small(), plan.problem
    made = model.stages(problem.stages)
    stages = [
        PipelineStage(made[s](), s, problem.stages, torch.device("cpu"))
        for s in problem.placement.stages_of(dist.get_rank())
    ]
    schedule = PlannedSchedule(stages, MICROBATCHES, loss_fn=model.loss, program=plan)
    optimizer = model.optimizer(p for stage in stages for p in stage.submod.parameters())
    means: list[float] = []
    for step in range(STEPS):
        inputs, target = map(torch.cat, model.batch(step, MICROBATCHES))
        losses: list[Tensor] = []
        optimizer.zero_grad()
        given = [inputs] if any(stage.is_first for stage in stages) else []
        last = any(stage.is_last for stage in stages)
        schedule.step(*given, target=target if last else None, losses=losses)
        optimizer.step()
        means += [torch.stack(losses).mean().item()] if losses else []
    return schedule, means
