"""From an order of ops to the prefetches, routes and collections that serve it."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeloom.ir.model.ops import Op, OpKind, pack, parse_order
from pipeloom.ir.model.placement import Passing, Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Transfer, TransferKind
from pipeloom.solver.weight_passing.prefetch import prefetches, visits
from pipeloom.solver.weight_passing.streaming import (
    Route,
    Streaming,
    default_owners,
    streamed,
    users,
)
from tests.support.by_hand import by_hand


@given(st.lists(st.integers(0, 4), max_size=10), st.integers(1, 3))
def test_no_choice_of_what_to_give_up_fetches_less(stages: list[int], buffers: int) -> None:
    runs = tuple(s for i, s in enumerate(stages) if i == 0 or s != stages[i - 1])

    @cache
    def least(at: int, held: frozenset[int]) -> int:
        if at == len(runs):
            return 0
        if runs[at] in held:
            return least(at + 1, held)
        kept = [held] if len(held) < buffers else [held - {gone} for gone in held]
        return 1 + min(least(at + 1, rest | {runs[at]}) for rest in kept)

    found = visits(pack([Op(OpKind.F, s, j) for j, s in enumerate(runs)]))
    assert len(prefetches(found, buffers, 0)) == least(0, frozenset())


def problem(ranks: int, stages: int, microbatches: int, **sizes: float) -> Problem:
    profile = Profile((StageProfile(1.0, 1.0, 1.0, **sizes),), ranks, shared_by=stages)
    placement = Placement.round_robin(ranks)
    return Problem(profile, microbatches, placement, profile.limit_from(None))


def legs(transfers: tuple[Transfer, ...], kind: TransferKind, stage: int) -> list[str]:
    """The paths of a stage's copies, by copy."""
    paths: dict[int, str] = {}
    for t in transfers:
        if (t.kind, t.stage) == (kind, stage):
            paths[t.copy] = f"{paths.get(t.copy, t.source)} > {t.target}"
    return [paths[copy] for copy in sorted(paths)]


@pytest.mark.parametrize(
    ("route", "out", "home"),
    [
        (Route.DIRECT, ["0 > 1", "0 > 2", "0 > 3"], ["1 > 0", "2 > 0", "3 > 0"]),
        (Route.ONE_WAY, ["0 > 1 > 2 > 3"], ["3 > 2 > 1 > 0"]),
        (Route.BOTH_WAYS, ["0 > 1 > 2", "0 > 3"], ["2 > 1 > 0", "3 > 0"]),
    ],
)
def test_routes(route: Route, out: list[str], home: list[str]) -> None:
    case = problem(4, 2, 4)
    rows = [pack(parse_order(f"0F{r} 1F{r} 1BW{r} 0BW{r}")) for r in range(4)]
    transfers = streamed(case, rows, Streaming(2, route)).transfers
    assert default_owners(case) == (0, 1)
    assert legs(transfers, TransferKind.WEIGHT, 0) == out
    assert legs(transfers, TransferKind.GRADIENT, 0) == home
    assert all(t.before == 4 for t in transfers if t.kind is TransferKind.GRADIENT)


def test_a_stage_of_one_rank_does_not_travel() -> None:
    """Stage 0 on rank 0 alone, 1 on rank 1, 2 on both."""
    rows = "0F0 0F1 2F0 2BW0 0BW0 0BW1", "1F0 1F1 2F1 2BW1 1BW0 1BW1"
    plan = by_hand(*rows, passing=Passing.MIXED)
    assert users(plan.problem) == [[0], [1], [0, 1]]
    assert {t.stage for t in streamed(plan.problem, plan.order, Streaming()).transfers} == {2}
