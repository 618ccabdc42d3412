"""Parameters that stages share: told, seen or refused, and then trained as in one process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipeloom.compiler import compile_schedule
from pipeloom.ir import InputError, Program
from pipeloom.runtime import LaunchError, Pipeline, measure_profile
from pipeloom.solver import build_family
from tests.support.hub import on_threads, own
from tests.support.models import (
    TinyTransformer,
    Untied,
    difference,
    gradient,
    named,
    reference,
    trained,
    whole,
)
from tests.support.one_rank import Of
from tests.support.schedules import profile, schedule

MICROBATCHES = 4
SHARED = (
    r"embedding.weight of stage 0 and head.weight of stage 1 are one parameter, whose gradients"
)


def program(ranks: int = 2, tied: Sequence[Sequence[int]] = (), family: str = "1f1b") -> Program:
    return compile_schedule(schedule(family, ranks, MICROBATCHES), tied=tied)


class Parts(Untied):
    """As a model hub's are cut: each stage makes the whole and keeps a part; no tie is named."""

    def stages(self, count: int) -> Sequence[Any]:
        return [lambda s=s: whole(TinyTransformer(), count)[s] for s in range(count)]


class Objects(Untied):
    """The same, with one model that all stages are parts of; it can be cut in two only."""

    def stages(self, count: int) -> Sequence[Any]:
        return [*whole(TinyTransformer(), count)] if count == 2 else []


@pytest.fixture(
    params=[TinyTransformer(), Parts(), Objects()], ids=["told", "functions", "objects"]
)
def source(request: pytest.FixtureRequest) -> TinyTransformer:
    found: TinyTransformer = request.param
    return found


def gradients_of(plan: Program, source: TinyTransformer) -> dict[str, Tensor]:
    return named(trained(plan, source, train=False).modules, gradient)


def test_a_tie_is_seen_and_refused_where_the_program_does_not_sum_it(
    source: TinyTransformer,
) -> None:
    with pytest.raises(LaunchError, match=f"tied: {SHARED}"):
        on_threads(gradients_of, 2, (program(), source), timeout=60)
    found = on_threads(gradients_of, 2, (program(tied=[(0, 1)]), source), timeout=60)
    assert torch.equal(found[0]["0.embedding.weight"], found[1]["1.head.weight"])


@pytest.mark.usefixtures("here")
def test_a_measured_profile_has_the_ties(source: TinyTransformer) -> None:
    found = measure_profile(source, stages=2, ranks=2, repeats=1, warmup=0, together=False)
    assert found.profile.tied == ((0, 1),)


def pair() -> nn.Module:
    """Two parameters of one shape."""
    a, z = (nn.Parameter(torch.eye(4)) for _ in range(2))
    return Of(lambda m, x: x @ m.a @ m.z, a=a, z=z)


def crossed(plan: Program, unlike: bool) -> None:
    """Steps of replicated stages of which one's ``a`` is the next one's ``z``, and the reverse: one
    of the two is frozen before the first step on rank 0 alone, or before the second on all."""
    tied = [[(0, "a"), (1, "z")], [(0, "z"), (1, "a")]]
    pipeline = Pipeline(plan, [pair] * 4, loss=nn.functional.mse_loss, tied=tied, transport=own())
    batch, target = torch.ones(MICROBATCHES, 4), torch.zeros(MICROBATCHES, 4)
    if not unlike:
        pipeline.step(batch, target=target)
    for stage, module in pipeline.modules.items():
        if stage in ((0,) if unlike else (0, 1)) and not (unlike and pipeline.rank):
            (module.a, module.z)[stage].requires_grad_(False)  # type: ignore[operator]
    pipeline.step(batch, target=target)


def test_copies_of_replicated_stages_have_one_name_on_all_ranks() -> None:
    plan = program(4, [(0, 1)], "chimera")
    on_threads(crossed, 4, (plan, False), timeout=60)
    line = "on all copies of a of stage 0 and z of stage 1, got False on rank 0, True on rank 1"
    with pytest.raises(LaunchError, match=line):
        on_threads(crossed, 4, (plan, True), timeout=60)


def converted() -> nn.Module:
    """A layer that takes its weights from one that is thrown away, as conversions do."""
    before, after = nn.Linear(4, 4), nn.Linear(4, 4)
    after.weight = before.weight
    return after


def test_layers_that_are_made_alike_share_nothing() -> None:
    def step() -> None:
        loss = nn.functional.mse_loss
        pipeline = Pipeline(program(), [converted, converted], loss=loss, transport=own())
        pipeline.step(torch.ones(4, 4), target=torch.zeros(4, 4))

    on_threads(step, 2, timeout=60)


def test_a_tie_within_one_stage_is_one_object_there() -> None:
    tied = [[(0, "embedding.weight"), (0, "head.weight")]]
    one = nn.ModuleDict({"embedding": nn.Embedding(5, 4), "head": nn.Linear(4, 5, bias=False)})
    line = r"tied: expected embedding.weight and head.weight of stage 0"
    with pytest.raises(InputError, match=line):
        Pipeline(program(1), [one], tied=tied)
    one["head"].weight = one["embedding"].weight
    Pipeline(program(1), [one], tied=tied)


def test_groups_that_have_a_parameter_in_common_are_one() -> None:
    tied = [[(0, "weight"), (1, "weight")], [(1, "weight"), (2, "weight")]]

    def said() -> str:
        plan, stages = program(3, tied=[(0, 1), (1, 2)]), [nn.Linear(4, 4) for _ in range(3)]
        with pytest.raises(InputError) as caught:
            Pipeline(plan, stages, tied=tied, transport=own())
        return str(caught.value)

    for line in on_threads(said, 3).values():
        assert "weight of stage 0 and weight of stage 1 and weight of stage 2 are one" in line


def test_a_reduction_of_more_stages_sums_what_some_of_them_share() -> None:
    """As of a profile whose tied stages were each cut in two."""
    plan = build_family("zb-v", replace(profile(2), tied=((0, 1),)), MICROBATCHES)
    program = compile_schedule(plan)
    assert "reduce 0 1 2 3" in map(str, program.instructions[1])
    source = TinyTransformer()
    wanted = reference(source, 4, MICROBATCHES)[1]
    for gradients in on_threads(gradients_of, 2, (program, source), timeout=60).values():
        assert all(difference(grad, wanted[name]) <= 1e-12 for name, grad in gradients.items())
