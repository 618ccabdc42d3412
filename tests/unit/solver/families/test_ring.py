"""The families in which weights go round a ring: orders, journeys, bubbles, traffic, refusals."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pipeloom.ir.cost.traffic import traffic
from pipeloom.ir.formats import dump_schedule
from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.model.problem import Objective
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule, TransferKind
from pipeloom.ir.model.transfers import journeys, owners
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.solver.families import FAMILIES, build_family
from pipeloom.solver.families.weights.ring import RingFamily
from tests.support.families import RINGS, fits

SIZES = [
    (name, ranks, count)
    for name in RINGS
    for ranks in (1, 2, 3, 4, 5, 8)
    for count in (1, ranks, ranks + 1, 2 * ranks, 3 * ranks + 1)
    if fits(name, ranks)
]
EQUAL = StageProfile(t_f=1.0, t_b=1.0, t_w=1.0, m_b=1.0, m_w=1.0)


def build(name: str, ranks: int, count: int, stage: StageProfile = EQUAL) -> Schedule:
    return build_family(name, Profile((stage,) * ranks, ranks), count)


# which stages' items are with a rank in phase q, of P: weights for F's, for B's, and D
Slots = Callable[[int, int], set[int]]


def forwards(q: int, p: int) -> set[int]:
    return {q % p}


def backwards(q: int, p: int) -> set[int]:
    return {(p - 1 - q) % p}


def pair(q: int, p: int) -> set[int]:
    i = q % p // 2
    return {p - 1 - i, p // 2 - 1 - i}


def pair_if_even(q: int, p: int) -> set[int]:
    return set() if q % 2 else pair(q, p)


def pair_if_odd(q: int, p: int) -> set[int]:
    return pair(q, p) if q % 2 else set()


SLOTS: dict[str, dict[tuple[TransferKind, int], Slots]] = {
    name: {
        (TransferKind.WEIGHT, 0): forwards,
        (TransferKind.WEIGHT, 1): b,
        (TransferKind.GRADIENT, 0): d,
    }
    for name, b, d in (
        ("weipipe-naive", backwards, backwards),
        ("weipipe-interleave", backwards, backwards),
        ("wzb1", pair_if_even, pair_if_odd),
        ("wzb2", backwards, forwards),
    )
}


@pytest.mark.parametrize(("name", "ranks", "count"), SIZES)
def test_items_are_where_the_published_slots_have_them(name: str, ranks: int, count: int) -> None:
    """From its first use on, an item is one rank further on in every turn."""
    schedule, family = build(name, ranks, count), FAMILIES[name]
    assert isinstance(family, RingFamily)
    turns = {str(op): turn for row in family.turns(ranks, count).rows for turn, op in row}
    uses = {
        (TransferKind.WEIGHT, 0): (OpKind.F,),
        (TransferKind.WEIGHT, 1): (OpKind.B, OpKind.BW),
        (TransferKind.GRADIENT, 0): (OpKind.W, OpKind.BW),
    }
    for (kind, stage, copy), journey in journeys(schedule.transfers).items():
        stops = [schedule.transfers[i].target for i in journey]
        if kind is TransferKind.GRADIENT or stage == 0:
            stops.insert(0, schedule.transfers[journey[0]].source)
        words = [f"{stage}{op.name}" for op in uses[kind, copy]]
        used = [turn for op, turn in turns.items() if op.rstrip("0123456789") in words]
        turn, last = min(used), max(used)
        for rank in stops:
            if turn <= last:
                assert stage in SLOTS[name][kind, copy](turn - rank, ranks)
            turn += 1
        assert turn > last


@pytest.mark.parametrize(("name", "ranks", "count"), SIZES)
def test_they_verify_and_every_stage_is_owned_by_its_rank(
    name: str, ranks: int, count: int
) -> None:
    stages = tuple(StageProfile(1.0 + s, 2.0 - s / 9, 0.5 + s % 2) for s in range(ranks))
    schedule = build_family(name, Profile(stages, ranks, t_comm=0.25), count)
    assert verify_schedule(dump_schedule(schedule)) == []
    if ranks > 1:
        assert owners(schedule) == tuple(range(ranks))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8, 16])
@pytest.mark.parametrize("rounds", [2, 3, 4, 7])
@pytest.mark.parametrize(("name", "turns"), [("weipipe-interleave", 1), ("wzb1", 1.5), ("wzb2", 3)])
def test_bubble_at_equal_times(name: str, turns: float, ranks: int, rounds: int) -> None:
    """Where an op of each kind takes 1, the bubble is that of ``turns`` turns a microbatch."""
    if not fits(name, ranks):
        pytest.skip("not with so many ranks")
    count = ranks * rounds
    found = build(name, ranks, count).known_timing
    rate = (ranks - 1) / (turns * count + ranks - 1)
    assert found.bubble_rate(Objective.MAKESPAN) == pytest.approx(rate, abs=1e-12)
    if name == "wzb2":
        assert found.bubble_rate(Objective.PERIOD) == 0.0


@pytest.mark.parametrize("name", RINGS)
@pytest.mark.parametrize("times", [(1, 1, 1), (1, 1, 2), (2, 1, 1), (1, 2, 1), (1, 1, 0.5)])
def test_a_turn_lasts_as_long_as_its_busiest_rank_at_most(
    name: str, times: tuple[float, float, float]
) -> None:
    """The cause of the bubble; but for wzb1 it is all of it."""
    family, (t_f, t_b, t_w) = FAMILIES[name], times
    assert isinstance(family, RingFamily)
    durations = {OpKind.F: t_f, OpKind.B: t_b, OpKind.W: t_w, OpKind.BW: t_b + t_w}
    busiest: dict[int, float] = {}
    for row in family.turns(4, 16).rows:
        work: dict[int, float] = {}
        for turn, op in row:
            work[turn] = work.get(turn, 0.0) + durations[op.kind]
        busiest |= {turn: max(busiest.get(turn, 0.0), t) for turn, t in work.items()}
    makespan = build(name, 4, 16, StageProfile(*times)).known_timing.makespan
    assert makespan <= sum(busiest.values()) + 1e-9
    if name != "wzb1":
        assert makespan == pytest.approx(sum(busiest.values()))


@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
@pytest.mark.parametrize("name", RINGS)
def test_a_remainder_costs_no_more_than_a_whole_round(name: str, ranks: int) -> None:
    if not fits(name, ranks):
        pytest.skip("not with so many ranks")
    stage = StageProfile(1.0, 1.25, 0.75)
    for count in range(1, 3 * ranks):
        whole = -(-count // ranks) * ranks
        assert (
            build(name, ranks, count, stage).known_timing.makespan
            <= build(name, ranks, whole, stage).known_timing.makespan + 1e-9
        )


@pytest.mark.parametrize(
    ("name", "held"), [("weipipe-naive", 1), ("weipipe-interleave", 1), ("wzb1", 1.5), ("wzb2", 1)]
)
def test_memory_in_whole_models(name: str, held: float) -> None:
    assert build(name, 4, 16).known_timing.peak_memory == (4 * held,) * 4


@pytest.mark.parametrize(
    ("name", "elements"),
    [("weipipe-naive", 72), ("weipipe-interleave", 36), ("wzb1", 54), ("wzb2", 108)],
)
def test_elements_over_a_link_for_one_microbatch_of_one_layer(name: str, elements: int) -> None:
    """In units of H^2; a layer has 12 H^2 parameters, and three layers' worth move in a turn.

    Interleave needs one turn for a microbatch of a layer, wzb1 1.5, naive 2, wzb2 3.
    """
    hidden, ranks = 8, 4
    layer = StageProfile(1.0, 1.0, 1.0, weight_bytes=12.0 * hidden**2, grad_bytes=12.0 * hidden**2)
    # two rounds more, so that what the ramps move cancels out
    fewer, more = (traffic(build(name, ranks, count * ranks, layer)) for count in (4, 6))
    for rank in range(ranks):
        added = more - fewer
        assert added[rank, (rank + 1) % ranks] == 2 * ranks * elements * hidden**2
    assert (added > 0).sum() == ranks
