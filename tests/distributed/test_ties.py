"""Parameters that stages share: told, seen or refused, and then trained as in one process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipeloom.compiler import compile_schedule
from pipeloom.ir import InputError, Profile, Program, StageProfile
from pipeloom.runtime import LaunchError, Pipeline, measure_profile
from pipeloom.solver import build_family
from tests.support.hub import on_threads, own
from tests.support.models import (
    VOCABULARY,
    WIDTH,
    TinyTransformer,
    difference,
    gradient,
    named,
    reference,
)

MICROBATCHES = 4
TOLD = r"embedding.weight of stage 0 and head.weight of stage 1 are one parameter, whose gradients"
SEEN = r"rows.weight of stage 0 and columns.weight of stage 1 are one parameter, whose gradients"


def program(ranks: int = 2, tied: Sequence[Sequence[int]] = (), family: str = "1f1b") -> Program:
    profile = Profile((StageProfile(1.0, 1.0, 1.0, 1.0, 0.5),) * ranks, ranks, t_comm=0.1)
    return compile_schedule(build_family(family, profile, MICROBATCHES), tied=tied)


class Whole(nn.Module):
    """Tokens to logits over the same matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(VOCABULARY, WIDTH)
        self.columns = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.columns.weight = self.rows.weight


class Part(nn.Module):
    """The front of a whole model, or its end; nothing of the rest is kept."""

    def __init__(self, whole: Whole, name: str) -> None:
        super().__init__()
        self.add_module(name, whole.get_submodule(name))

    def forward(self, x: Tensor) -> Tensor:
        (layer,) = self.children()
        out: Tensor = layer(x)
        return out


class Parts(TinyTransformer):
    """As a model hub's are cut: each stage makes the whole and keeps a part; no tie is named."""

    def stages(self, count: int) -> Sequence[Any]:
        return [lambda: Part(whole(), "rows"), lambda: Part(whole(), "columns")]

    def tied(self, count: int) -> Sequence[Sequence[tuple[int, str]]]:
        return ()


class Objects(Parts):
    """The same, with one model that all stages are parts of."""

    def stages(self, count: int) -> Sequence[Any]:
        model = whole()
        return [Part(model, "rows"), Part(model, "columns")]


def whole() -> Whole:
    """The same each time."""
    torch.manual_seed(3)
    return Whole()


def trained(plan: Program, source: TinyTransformer) -> dict[str, Tensor]:
    pipeline = Pipeline.from_source(plan, source, train=False, transport=own())
    inputs, targets = source.batch(0, MICROBATCHES)
    pipeline.step(inputs, target=targets)
    pipeline.close()
    return named(pipeline.modules, gradient)


def test_a_tie_that_the_program_does_not_sum_is_refused() -> None:
    with pytest.raises(LaunchError, match=f"tied: {TOLD}"):
        on_threads(trained, 2, (program(), TinyTransformer()), timeout=60)


@pytest.mark.parametrize("source", [Parts(), Objects()], ids=["functions", "objects"])
def test_a_tie_that_nobody_named_is_seen(source: TinyTransformer) -> None:
    """Refused where the program does not sum it, else summed."""
    with pytest.raises(LaunchError, match=f"tied: {SEEN}"):
        on_threads(trained, 2, (program(), source), timeout=60)
    found = on_threads(trained, 2, (program(tied=[(0, 1)]), source), timeout=60)
    assert torch.equal(found[0]["0.rows.weight"], found[1]["1.columns.weight"])


class Pair(nn.Module):
    """Two parameters of one shape."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.z = nn.Parameter(torch.eye(4)), nn.Parameter(torch.eye(4))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x @ self.a @ self.z
        return out


def crossed(plan: Program, unlike: bool) -> None:
    """Steps of replicated stages of which one's ``a`` is the next one's ``z``, and the reverse: one
    of the two is frozen before the first step on rank 0 alone, or before the second on all."""
    tied = [[(0, "a"), (1, "z")], [(0, "z"), (1, "a")]]
    pipeline = Pipeline(plan, [Pair] * 4, loss=nn.functional.mse_loss, tied=tied, transport=own())
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


class Converted(nn.Module):
    """A layer that takes its weights from one that is thrown away, as conversions do."""

    def __init__(self) -> None:
        super().__init__()
        before, self.after = nn.Linear(4, 4), nn.Linear(4, 4)
        self.after.weight = before.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.after(x)
        return out


def test_layers_that_are_made_alike_share_nothing() -> None:
    on_threads(_converted, 2, (program(),), timeout=60)


def _converted(plan: Program) -> None:
    pipeline = Pipeline(plan, [Converted, Converted], loss=nn.functional.mse_loss, transport=own())
    pipeline.step(torch.ones(4, 4), target=torch.zeros(4, 4))


def test_a_tie_within_one_stage_is_one_object_there() -> None:
    plan = program(1)
    with pytest.raises(
        InputError, match=r"tied: expected embedding.weight and head.weight of stage 0"
    ):
        Pipeline(plan, [_both(one=False)], tied=[[(0, "embedding.weight"), (0, "head.weight")]])
    Pipeline(plan, [_both(one=True)], tied=[[(0, "embedding.weight"), (0, "head.weight")]])


def _both(*, one: bool) -> nn.Module:
    module = nn.ModuleDict({"embedding": nn.Embedding(5, 4), "head": nn.Linear(4, 5, bias=False)})
    if one:
        module["head"].weight = module["embedding"].weight
    return module


def test_groups_that_have_a_parameter_in_common_are_one() -> None:
    tied = [[(0, "weight"), (1, "weight")], [(1, "weight"), (2, "weight")]]
    for stages in on_threads(_chained, 3, (program(3, tied=[(0, 1), (1, 2)]), tied)).values():
        assert "weight of stage 0 and weight of stage 1 and weight of stage 2 are one" in stages


def _chained(plan: Program, tied: Sequence[Sequence[tuple[int, str]]]) -> str:
    with pytest.raises(InputError) as caught:
        Pipeline(plan, [nn.Linear(4, 4) for _ in range(3)], tied=tied, transport=own())
    return str(caught.value)


def test_a_reduction_of_more_stages_sums_what_some_of_them_share() -> None:
    """As of a profile whose tied stages were each cut in two."""
    profile = Profile((StageProfile(1.0, 1.0, 1.0, 1.0, 0.5),) * 2, 2, t_comm=0.1, tied=((0, 1),))
    plan = compile_schedule(build_family("zb-v", profile, MICROBATCHES))
    assert "reduce 0 1 2 3" in map(str, plan.instructions[1])
    source = TinyTransformer()
    wanted = reference(source, 4, MICROBATCHES)[1]
    for gradients in on_threads(trained, 2, (plan, source), timeout=60).values():
        assert all(difference(grad, wanted[name]) <= 1e-12 for name, grad in gradients.items())


@pytest.mark.parametrize(
    "source", [TinyTransformer(), Parts(), Objects()], ids=["told", "functions", "objects"]
)
def test_a_measured_profile_has_the_ties(source: TinyTransformer) -> None:
    found = measure_profile(source, stages=2, ranks=2, repeats=1, warmup=0, together=False)
    assert found.profile.tied == ((0, 1),)
