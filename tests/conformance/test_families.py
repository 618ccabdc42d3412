"""Every family of ``FAMILIES`` is valid for what it accepts, and is as published.

``tests/golden/family_orders.txt`` has their orders; ``tests/verify`` looks at their programs.
Sources of the bubbles: gpipe, 1f1b (dapple alike), zb-h1, zb-h2 and zb-v Qi et al., 2024;
interleaved-1f1b (grouped alike) Narayanan et al., 2021; looped-bfs Lamy-Poirier, 2023; weipipe-
interleave Lin et al., 2025; dualpipe table 2 of DeepSeek-V3. Those of wzb1 and wzb2 follow from
when their ops run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipeloom import (
    InfeasibleError,
    Objective,
    Profile,
    Schedule,
    StageProfile,
    build_family,
    dump_schedule,
    load_schedule,
    verify_schedule,
)
from pipeloom.compiler import footprint
from pipeloom.ir import (
    DataParallel,
    Link,
    Links,
    Passing,
    Sharing,
    Timing,
    format_order,
    step_time,
    traffic,
)
from pipeloom.solver import ASYNCHRONOUS, FAMILIES, find_family
from tests.support.families import RINGS, families_of, fits
from tests.support.iterations import play_iterations
from tests.support.random_schedules import SEEDS, profiles, unlike
from tests.support.table5 import ROWS, Row

PARAMETRIZED = [
    *("interleaved-1f1b:1", "interleaved-1f1b:3", "interleaved-1f1b-grouped:3", "looped-bfs:1"),
    *("wave:2", "fsdp:0", "zb-v:2", "zb-v:5", "dualpipe", "dualpipev"),  # pairs are rare
]
NAMES = st.sampled_from([*FAMILIES, *PARAMETRIZED])
TIMES = st.one_of(st.just(0.0), st.floats(0.01, 50.0))
PROFILES = st.integers(1, 5).flatmap(
    lambda ranks: profiles(ranks, ranks, times=TIMES, latencies=TIMES, paired=True)
)
UNIT = StageProfile(1.0, 1.0, 1.0, 1.0, 1.0)
HALF = StageProfile(1.0, 1.0, 1.0, m_b=1.0, m_w=0.5)


def document(schedule: Schedule) -> dict[str, Any]:
    return json.loads(json.dumps(dump_schedule(schedule)))  # type: ignore[no-any-return]


def rows_of(schedule: Schedule) -> list[str]:
    return [format_order(schedule.ops(rank)) for rank in range(schedule.problem.ranks)]


def equal(ranks: int, chunks: int = 1, stage: StageProfile = UNIT, **more: Any) -> Profile:
    return Profile((stage,) * chunks * ranks, ranks, **more)


def timing_of(name: str, profile: Profile, microbatches: int) -> Timing:
    return build_family(name, profile, microbatches).known_timing


def idle(timing: Timing, rank: int | None = None) -> float:
    """What of the makespan a rank does nothing in; or all of them, on average."""
    if rank is None:
        return timing.makespan - timing.work / len(timing.start)
    busy = np.zeros(round(timing.makespan * 1000), dtype=bool)
    for start, end in zip(timing.start[rank], timing.end[rank], strict=True):
        busy[round(start * 1000) : round(end * 1000)] = True
    return float(np.count_nonzero(~busy)) / 1000


@pytest.mark.parametrize("alike", [True, False])
@given(NAMES, PROFILES, st.integers(1, 11), st.floats(0.1, 0.999), SEEDS)
def test_every_family_is_valid_and_names_its_least_limit(
    alike: bool, name: str, profile: Profile, microbatches: int, share: float, seed: int
) -> None:
    assume(fits(name, profile.ranks))
    profile = profile if alike else unlike(profile, microbatches, seed)
    schedule = build_family(name, profile, microbatches)
    assert verify_schedule(document(schedule)) == []
    assert find_family(name).supports(schedule.problem) is None
    again = build_family(schedule.known_report.family, profile, microbatches)
    assert rows_of(again) == rows_of(schedule)
    peaks = schedule.known_timing.peak_memory
    build_family(name, profile, microbatches, memory_limit=max(peaks))
    if max(peaks) > 0.0:
        with pytest.raises(InfeasibleError) as caught:
            build_family(name, profile, microbatches, memory_limit=max(peaks) * share)
        assert caught.value.smallest == max(peaks) == peaks[caught.value.rank or 0]


GROUPS = (((0, 1), (2, 3), (3, 0)), ((1, 0), (0, 1)))


@pytest.mark.parametrize("name", families_of(4))
@pytest.mark.parametrize("shared", [*Sharing, GROUPS], ids=str)
def test_every_family_is_valid_whatever_shares_wires(name: str, shared: Any) -> None:
    """On uneven stages, over links slow enough that transfers do wait."""
    stages = tuple(
        StageProfile(1.0 + s % 2, 1.1, 0.9, activation_bytes=1e6, weight_bytes=2e6, grad_bytes=1e6)
        for s in range(4)
    )
    links = Links(Link(0.1, 2.0), ((1, 2, Link(0.3, 0.7)),), shared)
    schedule = build_family(name, Profile(stages, 4, links=links), 6, memory_limit=math.inf)
    assert verify_schedule(document(schedule)) == []
    assert step_time(schedule) > 0


@pytest.mark.parametrize("family", [f for f in families_of(2) if f not in ASYNCHRONOUS])
def test_every_family_averages_its_gradients_over_replicas(family: str) -> None:
    stage = StageProfile(2.0, 2.0, 1.5, 1.0, 0.5, t_fb=4.0, weight_bytes=1e6, grad_bytes=3e6)
    replicas = DataParallel(4, Link(0.5, 1.0))
    schedule = build_family(family, equal(2, 1, stage, t_comm=0.1, data_parallel=replicas), 4)
    assert verify_schedule(document(schedule)) == []
    timing, report = schedule.known_timing, document(schedule)["report"]
    assert load_schedule(document(schedule)).known_timing.averages == timing.averages
    assert sum(map(len, timing.averages)) >= schedule.problem.stages
    assert all(timing.iteration_time(each) >= timing.cost(each) for each in Objective)
    assert report["iteration_time"] == timing.iteration_time(Objective.PERIOD)
    if not schedule.transfers and schedule.problem.placement.passing is Passing.ACTIVATIONS:
        done = play_iterations(schedule).begin[-1]  # no wires, one iteration: in other words
        assert done.tolist() == pytest.approx([row[-1].end for row in timing.averages])


# a rank's idle time in the makespan, in units of P - 1 F's; two stages a rank in the second line
IDLE = {
    "gpipe": 3.0, "1f1b": 3.0, "dapple": 3.0, "zb-h1": 1.0,
    "interleaved-1f1b": 1.5, "interleaved-1f1b-grouped": 1.5, "looped-bfs": 1.5,
    "weipipe-interleave": 3.0, "wzb1": 2.0, "wzb2": 1.0,
}  # fmt: skip
NO_BUBBLE = ("zb-h2", "zb-v", "wzb2")  # of the period


EQUAL = product((*IDLE, *NO_BUBBLE), [(1, 3), (2, 4), (3, 9), (4, 8), (4, 20), (8, 24)])


@pytest.mark.parametrize(("name", "sizes"), [each for each in EQUAL if fits(each[0], each[1][0])])
def test_equal_times_give_the_published_bubble(name: str, sizes: tuple[int, int]) -> None:
    """For T_F = T_B = T_W, no delays, P dividing M and M > P."""
    ranks, count = sizes
    timing = timing_of(name, equal(ranks), count)
    least = IDLE.get(name, 0.0) * (ranks - 1)
    rate = timing.bubble_rate(Objective.MAKESPAN if name in IDLE else Objective.PERIOD)
    assert rate == pytest.approx(least / (3.0 * count + least), abs=1e-12)
    assert name not in NO_BUBBLE or timing.bubble_rate(Objective.PERIOD) == 0.0


@pytest.mark.parametrize(
    "times", [(1, 1, 1), (4, 3, 2), (1, 3, 1), (1, 2, 1.4), (2, 1, 2), (1, 1, 3)]
)
@pytest.mark.parametrize(
    ("name", "bubble"),
    [
        ("gpipe", lambda f, b, w: f + b + w),
        ("1f1b", lambda f, b, w: f + b + w),
        ("interleaved-1f1b:2", lambda f, b, w: (f + b + w) / 2),
        ("interleaved-1f1b-grouped:2", lambda f, b, w: (f + b + w) / 2),
        ("zb-h1", lambda f, b, w: f + b - min(f, w)),
        ("zb-h2", lambda f, b, w: f + b - 2 * min(f, w)),
    ],
)
def test_other_times_give_it_too(
    name: str, bubble: Callable[..., float], times: tuple[float, float, float]
) -> None:
    timing = timing_of(name, equal(4, 1, StageProfile(*times)), 16)
    assert timing.period == pytest.approx(16 * sum(times) + 3 * max(0, bubble(*times)))


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "zb-h2"])
@pytest.mark.parametrize("row", ROWS.values(), ids=str)
def test_published_bubble_rates_to_four_digits(row: Row, name: str) -> None:
    timing = timing_of(name, row.profile, row.microbatches)
    period = timing.bubble_rate(Objective.PERIOD)
    assert round(period, 4) == row.published[name]
    if name != "zb-h2":  # its figure is the period; of the others both are the same
        assert timing.bubble_rate(Objective.MAKESPAN) == pytest.approx(period, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "ranks", "count", "expected"),
    [
        ("gpipe", 3, 9, (9.0, 9.0, 9.0)),
        ("1f1b", 3, 9, (3.0, 2.0, 1.0)),
        ("zb-h1", 3, 9, (3.0, 2.5, 2.0)),
        ("zb-h2", 3, 9, (5.0, 4.0, 3.0)),
        ("interleaved-1f1b:2", 3, 9, (4.0, 3.0, 2.0)),
        ("interleaved-1f1b-grouped:2", 3, 9, (3.0, 2.5, 2.0)),
        ("looped-bfs:3", 3, 6, (6.0, 6.0, 6.0)),
        ("weipipe-naive", 4, 16, (4.0,) * 4),
        ("weipipe-interleave", 4, 16, (4.0,) * 4),
        ("wzb1", 4, 16, (6.0,) * 4),
        ("wzb2", 4, 16, (4.0,) * 4),
    ],
)
def test_memory_of_each_family(
    name: str, ranks: int, count: int, expected: tuple[float, ...]
) -> None:
    found = timing_of(name, equal(ranks, 1, HALF), count).peak_memory
    assert found == pytest.approx(expected)


# linear, interleaved, V ---------------------------------------------------------------------------


def test_a_profile_of_one_stage_a_rank_is_cut_and_one_chunk_is_1f1b() -> None:
    problem = build_family("interleaved-1f1b:3", equal(2, 1, HALF), 2).problem
    assert (problem.stages, problem.profile.stages[5].t_f) == (6, pytest.approx(1 / 3))
    one = build_family("interleaved-1f1b:1", equal(3), 5)
    assert rows_of(one) == rows_of(build_family("1f1b", equal(3), 5))
    doubled = equal(3, 1, StageProfile(2.0, 2.0, 2.0, 2.0, 2.0))
    for name in ("zb-v", "v-half", "v-min"):
        cut, given_ = (build_family(name, each, 5) for each in (doubled, equal(3, 2)))
        assert rows_of(cut) == rows_of(given_)
    wave = build_family("wave:2", equal(3), 1).problem.placement
    assert wave.owners == (0, 1, 2, 2, 1, 0, 0, 1, 2, 2, 1, 0)


def test_a_remainder_costs_no_more_than_its_work_or_a_whole_round() -> None:
    spans = [timing_of("interleaved-1f1b:2", equal(8), m).makespan for m in range(8, 25)]
    assert max(more - less for less, more in pairwise(spans)) <= 3.0 + 1e-9
    for name in RINGS:
        stages = equal(4, 1, StageProfile(1.0, 1.25, 0.75))
        spans = [timing_of(name, stages, m).makespan for m in range(1, 13)]
        assert all(span <= spans[(i // 4) * 4 + 3] + 1e-9 for i, span in enumerate(spans)), name


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 7, 8, 9, 12])
def test_memory_and_bubbles_of_the_vs(ranks: int) -> None:
    """In chunks and in slots of one op; without communication."""
    count = 3 * ranks
    zb_v, v_half, v_min = (
        timing_of(name, equal(ranks, 2), count) for name in ("zb-v", "v-half", "v-min")
    )
    assert max(zb_v.peak_memory) == 2 * ranks
    assert max(v_half.peak_memory) == ranks + 2 - ranks % 2
    assert max(v_min.peak_memory) <= (2 * ranks + 8) / 3
    assert zb_v.period == 6 * count
    half, least = (3 * ranks - 4, 4 * ranks - 5) if ranks > 1 else (0, 0)
    assert v_half.period == v_half.makespan == 6 * count + half + (ranks % 2 == 0)
    assert v_min.period == v_min.makespan == 6 * count + least + 2 * (ranks % 3 == 0)


@pytest.mark.parametrize("delay", [0.0, 0.5, 1.5])
def test_dapple_hides_messages_that_1f1b_waits_for(delay: float) -> None:
    """At P = 4 and T_F + T_B + T_W = 3: up to 2 t_comm = 3 only the ramps grow, by 6 t_comm."""
    ramps = 3 * (3.0 + 2 * delay)
    dapple, waits = (
        timing_of(name, equal(4, t_comm=delay), 32).makespan - 3.0 * 32 - ramps
        for name in ("dapple", "1f1b")
    )
    assert (dapple, waits) == (pytest.approx(0.0), pytest.approx(46 * delay))


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("waves", [1, 2, 4])
def test_waves_have_two_thirds_of_1f1bs_bubble_over_k(ranks: int, waves: int) -> None:
    """For M = P at equal times, within two slots of a chunk."""
    timing = timing_of(f"wave:{waves}", equal(ranks, 2 * waves), ranks)
    assert 0 <= timing.makespan - 6 * waves * ranks - 4 * (ranks - 1) <= 2
    assert max(timing.peak_memory) == 2 * waves * ranks


# each stage on two ranks --------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 4, 6, 8, 16])
def test_chimera_has_its_bubble_and_memory(ranks: int) -> None:
    """Published for M = P; with more microbatches the next ones fill a part of it."""
    once, often = (timing_of("chimera", equal(ranks), m) for m in (ranks, 4 * ranks))
    assert idle(once) == pytest.approx(2.0 * (ranks - 2))
    assert idle(often) <= idle(once) < idle(timing_of("1f1b", equal(ranks), ranks))
    assert max(once.peak_memory) <= ranks
    assert max(often.peak_memory) <= ranks + 1


def paired(share: float, t: tuple[float, ...] = (1.0, 1.0, 1.0)) -> StageProfile:
    """Pairs take ``share`` of what both ops do alone."""
    return StageProfile(*t, weight_bytes=1.0, t_fb=share * sum(t))


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("share", [1.0, 0.8, 0.7])
@pytest.mark.parametrize("rounds", [2, 5])
def test_dualpipe_has_its_bubble_parameters_and_activations(
    ranks: int, share: float, rounds: int
) -> None:
    """At T_F = T_B = T_W, so that B is 2 F."""
    schedule = build_family("dualpipe", equal(ranks, 1, paired(share)), rounds * ranks)
    middle = idle(schedule.known_timing, ranks // 2 - 1)
    assert middle == pytest.approx((ranks / 2 - 1) * (3 * share + 2 - 3))
    assert max(schedule.known_timing.peak_memory) == ranks + 1
    assert footprint(schedule).weights == (2.0,) * ranks


@pytest.mark.parametrize("t", [(1.0, 1.0, 1.0), (3.0, 3.0, 1.0), (1.0, 1.0, 0.5)])
def test_dualpipev_has_its_bubble_and_memory(t: tuple[float, float, float]) -> None:
    for microbatches in (8, 13):
        timing = timing_of("dualpipev", equal(4, 2, StageProfile(*t, 1.0, 0.5)), microbatches)
        assert timing.makespan == pytest.approx(2 * microbatches * sum(t) + 3 * (2 * t[1] - t[2]))
        assert max(timing.peak_memory) == 9.0
    for share in (1.0, 0.8):  # two chunks each
        timing = timing_of("dualpipev", equal(4, 1, paired(share, (2.0, 2.0, 2.0))), 16)
        assert idle(timing, 3) == pytest.approx(3 * (3 * share + 2 - 3))


# weights travel -----------------------------------------------------------------------------------


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
    built = (build_family(name, equal(ranks, 1, layer), count * ranks) for count in (4, 6))
    fewer, more = map(traffic, built)
    added = more - fewer
    for rank in range(ranks):
        assert added[rank, (rank + 1) % ranks] == 2 * ranks * elements * hidden**2
    assert (added > 0).sum() == ranks


@given(st.integers(1, 6), st.integers(1, 20), *[st.floats(0.125, 4.0)] * 3)
def test_weipipes_makespan_is_at_most_the_published_one(
    ranks: int, count: int, t_f: float, t_b: float, t_w: float
) -> None:
    """Without a second round no turn holds an F and a BW."""
    timing = timing_of("weipipe-interleave", equal(ranks, 1, StageProfile(t_f, t_b, t_w)), count)
    expected = (count + ranks - 1) * (t_f + t_b + t_w)
    if 1 < count <= ranks and ranks > 1:
        expected = ranks * (t_f + t_b + t_w) + (count - 1) * max(t_f, t_b + t_w)
    assert timing.makespan == pytest.approx(expected)


def gathered(hop: float, ranks: int, stages: int) -> Profile:
    stage = StageProfile(1.0, 1.0, 1.0, weight_bytes=2e6, grad_bytes=3e6)
    links = Links(Link(hop, 1e9))  # what a size adds to the latency is beyond what tests compare
    return Profile((stage,), ranks, links=links, shared_by=stages)


def test_no_overlap_pays_every_gather_and_overlap_the_last_gradient() -> None:
    """P = S = 2, M = 2: each rank gathers for one of two F's and of two BW's, one gradient each
    way.

    ::

        no overlap   rank 0  F0 - F1 - B1 - B0 .      the second - is for the gather of B1, the
                     rank 1  - F0 F1 B1 - B0 .        third for rank 0's gradient to go to its owner
    """
    found = [timing_of(f"fsdp:{ahead}", gathered(0.5, 2, 2), 2) for ahead in (0, 1)]
    starts = [[row.tolist() for row in timing.start] for timing in found]
    assert starts == [
        [pytest.approx([0.0, 1.5, 3.0, 5.5], 1e-4), pytest.approx([0.5, 1.5, 2.5, 5.5], 1e-4)],
        [pytest.approx([0.0, 1.0, 2.0, 4.0], 1e-4), pytest.approx([0.5, 1.5, 2.5, 4.5], 1e-4)],
    ]
    for hop in (0.0, 0.3, 2.0):
        none, one = (
            timing_of(f"fsdp:{ahead}", gathered(hop, 4, 8), 12).makespan for ahead in (0, 1)
        )
        assert 2 * 36 * (1 - 1e-9) <= one <= none
