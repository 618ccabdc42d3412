"""Our programs inside of what torch.distributed.pipelining has, and as a CSV in its runtime: equal
to its own schedules."""

from __future__ import annotations

import pytest

from pipeloom.runtime import launch_ranks
from tests.distributed.cases.torch_schedules import CASES, RANKS, Found, compared


@pytest.fixture(scope="module")
def found() -> dict[int, Found]:
    return launch_ranks(compared, RANKS, timeout=240, message_timeout=60)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_steps_and_evaluations_are_those_of_torchs_own_schedule(
    found: dict[int, Found], case: tuple[str, str, int, bool]
) -> None:
    for each in found.values():
        outcome = each.outcomes[CASES.index(case)]
        assert outcome.gradients <= 1e-12
        assert outcome.accumulated <= 1e-12
        assert outcome.by_csv <= 1e-12
        assert outcome.stepped
        assert outcome.evaluated


def test_replicas_with_shards_have_the_mean_or_the_sum_that_they_ask_for(
    found: dict[int, Found],
) -> None:
    for each in found.values():
        assert max(each.sharded) <= 1e-12


def test_what_does_not_go_together_is_one_line(found: dict[int, Found]) -> None:
    lines = found[0].refused
    expected = [
        "n_microbatches: expected 4, as the program has, got 5",
        "program: made for 2 ranks, the stages' group has 4",
        "program: has 8 stages, expected 4 as the stages say",
        "program: passing: expected activations, got weights",
        "program: updates: expected one optimizer step an iteration, got microbatch",
        "optimizer: expected none, as the caller's steps, got",
        "stages: expected a PipelineStage or a list of them, got none",
        "stages[0]: expected a PipelineStage, got Linear",
        "nowhere.json: ",
        "step: update: expected another name",
        "step: metrics: expected another name",
        "step: nonsense: expected it in kwarg_mbs, beside lists of microbatches",
        "step: target: expected it in target_mbs, beside lists of microbatches",
    ]
    assert len(lines) == len(expected)
    for line, start in zip(lines, expected, strict=True):
        assert line.startswith(start)
