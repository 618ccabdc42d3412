"""wave, looped-bfs, dapple and dualpipev: their orders, memory and bubbles."""

from __future__ import annotations

import pytest

from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Timing
from pipeloom.solver.families import build_family


def stages(number: int, ranks: int, t: tuple[float, float, float] = (1.0, 1.0, 1.0)) -> Profile:
    return Profile((StageProfile(*t, m_b=1.0, m_w=0.5),) * number, ranks)


def timing_of(name: str, profile: Profile, microbatches: int) -> Timing:
    return build_family(name, profile, microbatches).known_timing


def test_a_wave_turns_round_where_it_ends() -> None:
    owners = build_family("wave:2", stages(3, 3), 1).problem.placement.owners
    assert owners == (0, 1, 2, 2, 1, 0, 0, 1, 2, 2, 1, 0)


@pytest.mark.parametrize("delay", [0.0, 0.5, 1.5])
def test_dapple_hides_messages_that_1f1b_waits_for(delay: float) -> None:
    """At P = 4 and T_F + T_B + T_W = 3: up to 2 t_comm = 3 only the ramps grow, by 6 t_comm."""
    profile = Profile((StageProfile(1.0, 1.0, 1.0),) * 4, 4, t_comm=delay)
    ramps = 3 * (3.0 + 2 * delay)
    assert timing_of("dapple", profile, 32).makespan == pytest.approx(3.0 * 32 + ramps)
    waits = timing_of("1f1b", profile, 32).makespan - 3.0 * 32 - ramps
    assert waits == pytest.approx(46 * delay)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("waves", [1, 2, 4])
def test_waves_have_two_thirds_of_1f1bs_bubble_over_k(ranks: int, waves: int) -> None:
    """For M = P at equal times, within two slots of a chunk."""
    timing = timing_of(f"wave:{waves}", stages(2 * waves * ranks, ranks), ranks)
    idle = timing.makespan - 6 * waves * ranks
    assert 0 <= idle - 4 * (ranks - 1) <= 2
    assert max(timing.peak_memory) == 2 * waves * ranks


@pytest.mark.parametrize("microbatches", [8, 13])
@pytest.mark.parametrize("t", [(1.0, 1.0, 1.0), (3.0, 3.0, 1.0), (1.0, 1.0, 0.5)])
def test_dualpipev_has_its_bubble_and_memory(
    microbatches: int, t: tuple[float, float, float]
) -> None:
    timing = timing_of("dualpipev", stages(8, 4, t), microbatches)
    assert timing.makespan == pytest.approx(2 * microbatches * sum(t) + 3 * (2 * t[1] - t[2]))
    assert max(timing.peak_memory) == 9.0


@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_looped_bfs_has_1f1bs_bubble_over_k_and_holds_all(chunks: int) -> None:
    timing = timing_of(f"looped-bfs:{chunks}", stages(4 * chunks, 4), 6)
    assert timing.makespan == pytest.approx(3 * 6 * chunks + 3 * 3)
    assert timing.peak_memory == (6.0 * chunks,) * 4
