"""From an order of ops to the prefetches, routes and collections that serve it."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeloom.ir.model.ops import Op, OpKind, pack, parse_order
from pipeloom.ir.model.placement import Passing, Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Transfer, TransferKind
from pipeloom.solver.weight_passing.prefetch import Visit, prefetches, visits
from pipeloom.solver.weight_passing.streaming import Route, Streaming, default_owners, stream, users

ROW = "0F0 1F0 2F0 3F0 3BW0 2BW0 1BW0 0BW0"


def fetched(text: str, buffers: int, lead: int, own: tuple[int, ...] = ()) -> list[str]:
    """``stage @ room - first op`` of each fetch."""
    foreign = [visit for visit in visits(pack(parse_order(text))) if visit.stage not in own]
    return [
        f"{f.visit.stage} @ {f.room} - {f.visit.first}" for f in prefetches(foreign, buffers, lead)
    ]


def test_visits_are_runs_of_one_stage_and_w_ends_none() -> None:
    found = visits(pack(parse_order("0F0 0F1 1F0 1B0 1W0 1F1 1B1 0B0")))
    assert found == [Visit(0, 0, 0, 1), Visit(1, 0, 2, 6), Visit(0, 1, 7, 7)]


def test_one_buffer_is_filled_once_it_is_free() -> None:
    assert fetched(ROW, 1, 0) == [
        "0 @ 0 - 0", "1 @ 1 - 1", "2 @ 2 - 2", "3 @ 3 - 3",
        "2 @ 5 - 5", "1 @ 6 - 6", "0 @ 7 - 7",
    ]  # fmt: skip


def test_two_buffers_keep_the_weights_of_the_turn() -> None:
    assert fetched(ROW, 2, 0) == [
        "0 @ 0 - 0", "1 @ 0 - 1", "2 @ 1 - 2", "3 @ 2 - 3", "1 @ 5 - 6", "0 @ 6 - 7"
    ]  # fmt: skip


def test_what_a_rank_owns_needs_no_fetch() -> None:
    assert fetched(ROW, 2, 0, own=(0, 3)) == ["1 @ 0 - 1", "2 @ 0 - 2"]


def test_lead_spares_what_was_used_just_before() -> None:
    """2 replaces 0, used again next, not 1, used right before and never again."""
    row = "0F0 1F0 2F0 2F1 0F1"
    assert fetched(row, 2, 0)[2] == "2 @ 2 - 2"
    assert fetched(row, 2, 1)[2:] == ["2 @ 1 - 2", "0 @ 2 - 4"]


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
    transfers = stream(case, rows, Streaming(2, route))
    assert default_owners(case) == (0, 1)
    assert legs(transfers, TransferKind.WEIGHT, 0) == out
    assert legs(transfers, TransferKind.GRADIENT, 0) == home
    assert all(t.before == 4 for t in transfers if t.kind is TransferKind.GRADIENT)


def test_a_fan_sends_the_longest_part_farthest_and_first() -> None:
    case = problem(9, 1, 9)
    rows = [pack(parse_order(f"0F{r} 0BW{r}")) for r in range(9)]
    transfers = stream(case, rows, Streaming(1, Route.FAN), (0,))
    assert legs(transfers, TransferKind.WEIGHT, 0) == [
        "0 > 4", "0 > 5", "0 > 2 > 3", "0 > 7 > 6", "0 > 1", "0 > 8"
    ]  # fmt: skip


def test_collections_share_out_what_a_rank_adds() -> None:
    case = problem(2, 1, 5)
    rows = [
        pack([op for j in range(r, 5, 2) for op in (Op(OpKind.F, 0, j), Op(OpKind.BW, 0, j))])
        for r in range(2)
    ]
    found = {
        count: [t.after for t in stream(case, rows, Streaming(collections=count), (0,))[1:]]
        for count in (1, 2, 3)
    }
    assert found == {1: [4], 2: [2, 4], 3: [2, 4]}  # rank 1 has two microbatches, four ops


def test_a_stage_of_one_rank_does_not_travel() -> None:
    owner = np.array([[0, 0], [1, 1], [0, 1]])  # stage 0 on rank 0 alone, 1 on rank 1, 2 on both
    stages = (StageProfile(1.0, 1.0, 1.0),) * 3
    placement = Placement.of_ops(Passing.MIXED, 2, owner)
    case = Problem(Profile(stages, 2), 2, placement, (float("inf"),) * 2)
    rows = [
        pack(parse_order("0F0 0F1 2F0 2BW0 0BW0 0BW1")),
        pack(parse_order("1F0 1F1 2F1 2BW1 1BW0 1BW1")),
    ]
    assert users(case) == [[0], [1], [0, 1]]
    assert {t.stage for t in stream(case, rows, Streaming())} == {2}


def test_owners_hold_about_the_same() -> None:
    sizes = (1.0, 8.0, 1.0, 2.0, 4.0, 1.0)
    stages = tuple(StageProfile(1.0, 1.0, 1.0, weight_bytes=size) for size in sizes)
    placement = Placement.round_robin(2)
    case = Problem(Profile(stages, 2), 4, placement, (float("inf"),) * 2)
    held = [0.0, 0.0]
    for size, rank in zip(sizes, default_owners(case), strict=True):
        held[rank] += size
    assert sorted(held) == [8.0, 9.0]
