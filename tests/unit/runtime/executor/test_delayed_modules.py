"""Modules that put off weight gradients by themselves: gradients are one process's, W is late."""

from __future__ import annotations

from functools import cache, partial

import pytest
from torch import Tensor, nn

from pipeloom.compiler import compile_schedule
from pipeloom.ir import InputError, OpKind, Program, Schedule, timed
from pipeloom.runtime import (
    LaunchError,
    Pipeline,
    StagesAs,
)
from pipeloom.runtime.executor.delayed_modules import delayed_modules
from pipeloom.runtime.stages.store import made
from tests.support.by_hand import by_hand
from tests.support.delayed_linear import Delayed, DelayedLinear, Layer
from tests.support.hub import on_threads, own
from tests.support.schedules import profile, schedule

RANKS, MICROBATCHES = 2, 4
RANGE = range(RANKS)
FAMILIES = ("1f1b", "zb-v", "chimera", "wzb2", "late")


def plan(family: str) -> Schedule:
    return weights_at_the_end() if family == "late" else schedule(family, RANKS, MICROBATCHES)


def weights_at_the_end(turned: bool = False) -> Schedule:
    """All F's, all B's, all W's, in their order, or of the last stage ``turned``."""
    rows = []
    for stage in range(RANKS):
        after = range(MICROBATCHES)
        if turned and stage == RANKS - 1:
            after = after[::-1]
        kinds = ("F", range(MICROBATCHES)), ("B", range(MICROBATCHES)), ("W", after)
        rows.append(" ".join(f"{stage}{kind}{j}" for kind, order in kinds for j in order))
    return timed(by_hand(*rows, profile=profile(RANKS)))


def trained(family: str, stages_as: StagesAs) -> tuple[dict[str, Tensor], list[str]]:
    """On one rank: the sums of two steps' gradients by name, and the coverage of its stages."""
    source, program = Delayed(), compile_schedule(plan(family))
    pipeline = Pipeline.from_source(
        program, source, train=False, stages_as=stages_as, transport=own()
    )
    for step in range(2):
        inputs, targets = source.batch(step, MICROBATCHES)
        pipeline.step(inputs, target=targets)
    found = {
        f"{s}.{name}": p.grad
        for s, module in pipeline.modules.items()
        for name, p in module.named_parameters()
        if p.grad is not None
    }
    told = [str(one) for one in pipeline.coverage.values()]
    pipeline.close()
    return found, told


@cache
def expected(stages: int) -> dict[str, Tensor]:
    source = Delayed(delayed=False)
    model = nn.Sequential(*(made(stage, s) for s, stage in enumerate(source.stages(stages))))
    for step in range(2):
        for x, y in zip(*source.batch(step, MICROBATCHES), strict=True):
            (source.loss(model(x), y) / MICROBATCHES).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    ("family", "stages_as"), [*((family, "eager") for family in FAMILIES), ("zb-h1", "aten")]
)
def test_gradients_are_one_processs(family: str, stages_as: StagesAs) -> None:
    """Graphs know nothing of what such modules do: they run as they are."""
    rows = on_threads(partial(trained, family, stages_as), RANKS)
    want = expected(plan(family).problem.stages)
    assert set().union(*(found for found, _ in rows.values())) == set(want)
    for found, told in rows.values():
        for name, gradient in found.items():
            assert (gradient - want[name]).abs().max() <= 1e-12 * want[name].abs().max(), name
        assert all(words.endswith("in B: norm.weight, norm.bias") for words in told)
        assert bool(told) == any(op.kind is OpKind.W for r in RANGE for op in plan(family).ops(r))


def test_w_in_another_order_than_b_is_refused() -> None:
    program = compile_schedule(weights_at_the_end(turned=True))
    expected = "W's of stage 1 in the order of its B's on rank 1, .* got 1W3 for 1B0"
    with pytest.raises(LaunchError, match=expected):
        on_threads(partial(made_of, program, True), RANKS)
    on_threads(partial(made_of, program, False), RANKS)


def test_so_is_a_bw_while_the_entries_of_others_wait() -> None:
    plan = schedule("v, every other backward split", RANKS, MICROBATCHES)
    with pytest.raises(LaunchError, match=r"got [01]BW1 for [01]B0"):
        on_threads(partial(made_of, compile_schedule(plan), True), RANKS)


def made_of(program: Program, delayed: bool) -> None:
    Pipeline.from_source(program, Delayed(delayed), transport=own()).close()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("fuse_wgrad_accumulation", True, r"stages\[3\]: 0.first has backward_dw: .* main_grad"),
        ("inner", DelayedLinear(), r"stages\[3\]: 0.first has .* no parameters of its own beside"),
    ],
)
def test_what_cannot_be_told_is_refused(name: str, value: object, words: str) -> None:
    layer = Layer(delayed=True)
    setattr(layer.first, name, value)
    with pytest.raises(InputError, match=words):
        delayed_modules(3, nn.Sequential(layer))
