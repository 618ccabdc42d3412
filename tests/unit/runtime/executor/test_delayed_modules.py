"""Modules that put off weight gradients by themselves: gradients are one process's, W is late."""

from __future__ import annotations

from functools import cache, partial

import pytest
from torch import Tensor

from pipeloom.compiler import compile_schedule
from pipeloom.ir import InputError, OpKind, Program, Schedule, timed
from pipeloom.runtime import LaunchError, Pipeline, StagesAs
from tests.support.by_hand import by_hand
from tests.support.delayed_linear import Delayed, DelayedLinear, Layer
from tests.support.hub import on_threads, own
from tests.support.models import gradient, named, whole, worst
from tests.support.one_rank import PLAIN, program
from tests.support.schedules import V, profile, schedule

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
    found = named(pipeline.modules, gradient)
    told = [str(one) for one in pipeline.coverage.values()]
    pipeline.close()
    return found, told


@cache
def expected(stages: int) -> dict[str, Tensor]:
    source = Delayed(delayed=False)
    model = whole(source, stages)
    for step in range(2):
        for x, y in zip(*source.batch(step, MICROBATCHES), strict=True):
            (source.loss(model(x), y) / MICROBATCHES).backward()
    return named(dict(enumerate(model)), gradient)


@pytest.mark.parametrize(
    ("family", "stages_as"), [*((family, "eager") for family in FAMILIES), ("zb-h1", "aten")]
)
def test_gradients_are_one_processs(family: str, stages_as: StagesAs) -> None:
    """Graphs know nothing of what such modules do: they run as they are."""
    rows = on_threads(partial(trained, family, stages_as), RANKS)
    want = expected(plan(family).problem.stages)
    assert set().union(*(found for found, _ in rows.values())) == set(want)
    for found, told in rows.values():
        assert worst(found, want) <= 1e-12
        assert all(words.endswith("in B: norm.weight, norm.bias") for words in told)
        assert bool(told) == any(op.kind is OpKind.W for r in RANGE for op in plan(family).ops(r))


@pytest.mark.parametrize(
    ("plan", "line"),
    [
        (
            weights_at_the_end(turned=True),
            "W's of stage 1 in the order of its B's on rank 1, .* got 1W3 for 1B0",
        ),
        (schedule(V, RANKS, MICROBATCHES), r"got [01]BW1 for [01]B0"),
    ],
    ids=["W in another order than B", "BW while entries of others wait"],
)
def test_an_order_that_their_queues_cannot_follow_is_refused(plan: Schedule, line: str) -> None:
    program = compile_schedule(plan)
    with pytest.raises(LaunchError, match=line):
        on_threads(partial(made_of, program, True), RANKS)
    on_threads(partial(made_of, program, False), RANKS)


def made_of(program: Program, delayed: bool) -> None:
    Pipeline.from_source(program, Delayed(delayed), transport=own()).close()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("fuse_wgrad_accumulation", True, r"stages\[1\]: first has backward_dw: .* main_grad"),
        ("inner", DelayedLinear(), r"stages\[1\]: first has .* no parameters of its own beside"),
    ],
)
def test_what_cannot_be_told_is_refused(name: str, value: object, words: str) -> None:
    layer = Layer(delayed=True)
    setattr(layer.first, name, value)
    with pytest.raises(InputError, match=words):
        Pipeline(program(PLAIN), [Layer(delayed=True), layer], loss=Delayed().loss)
