"""Profiles: delays between ranks, cutting stages, limits; and what a problem makes of them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.formats import dump_profile, dump_schedule, load_profile
from pipeloom.ir.formats.profile_json import parse_profile
from pipeloom.ir.model.layered_profile import joined
from pipeloom.ir.model.placement import Passing, Placement
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Link, Links, Profile, StageProfile
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.solver.families import build_family

STAGE = StageProfile(4.0, 6.0, 2.0, m_b=8.0, m_w=4.0, activation_bytes=1e6, weight_bytes=10.0)


def test_one_delay_is_for_all_pairs_but_the_rank_itself() -> None:
    assert Profile((STAGE,) * 2, 2, t_comm=0.5).delays(1e9).tolist() == [[0.0, 0.5], [0.5, 0.0]]


def test_a_matrix_of_delays_goes_from_row_to_column() -> None:
    profile = Profile((STAGE,) * 2, 2, t_comm=((9.0, 1.0), (2.0, 9.0)))
    assert profile.delays(None).tolist() == [[0.0, 1.0], [2.0, 0.0]]


def test_links_turn_bytes_into_delays_both_ways() -> None:
    links = Links(Link(0.1, 10.0), ((2, 0, Link(1.0, 1.0)),))
    matrix = Profile((STAGE,) * 3, 3, links=links).delays(2e6)  # 0.2 ms at 10 GB/s, 2 ms at 1 GB/s
    expected = [[0.0, 0.3, 3.0], [0.3, 0.0, 0.3], [3.0, 0.3, 0.0]]
    assert np.allclose(matrix, expected)


def test_of_two_links_for_one_pair_the_first_counts_whoever_asks() -> None:
    """The simulator took the last, the schedule's verifier the first, the transfers' the last."""
    pairs = ((1, 0, Link(1.0, 1.0)), (0, 1, Link(7.0, 1.0)))
    links = Links(Link(0.1, 10.0), pairs)
    profile = Profile((STAGE,) * 2, 2, links=links)
    assert profile.link_delays(0.0)[0, 1] == links.matrices(2)[0][0, 1] == 1.0
    for family in ("1f1b", "weipipe-interleave"):
        assert verify_schedule(dump_schedule(build_family(family, profile, 2))) == []


def test_t_comm_comes_before_links_and_neither_is_no_delay() -> None:
    links = Links(Link(5.0, 1.0))
    assert Profile((STAGE,) * 2, 2, t_comm=0.5, links=links).delays(1.0)[0, 1] == 0.5
    assert Profile((STAGE,) * 2, 2, links=links).delays(None)[0, 1] == 5.0
    assert not Profile((STAGE,) * 2, 2).delays(1e9).any()


def test_a_cut_stage_shares_out_all_but_what_it_sends() -> None:
    first, second, *_ = Profile((STAGE, STAGE), 2).split(2).stages
    assert first == second == StageProfile(2.0, 3.0, 1.0, 4.0, 2.0, 1e6, 5.0)
    assert Profile((STAGE, STAGE), 2).split(3).num_stages == 6


def test_the_limit_given_comes_before_the_profile_s() -> None:
    profile = Profile((STAGE,) * 2, 2, memory_limit=(1.0, 2.0))
    assert profile.limit_from(5.0) == (5.0, 5.0)
    assert profile.limit_from(0.0) == (0.0, 0.0)
    assert profile.limit_from(None) == (1.0, 2.0)
    assert Profile((STAGE,) * 2, 2).limit_from(None) == (math.inf, math.inf)


def test_placements_say_who_runs_what() -> None:
    assert Placement.linear(2).matrix(2, 3).tolist() == [[0, 0, 0], [1, 1, 1]]
    assert Placement.interleaved(2, 2).matrix(4, 1).ravel().tolist() == [0, 1, 0, 1]
    assert Placement.round_robin(2).matrix(2, 3).tolist() == [[0, 1, 0], [0, 1, 0]]
    mixed = Placement.of_ops(Passing.MIXED, 2, np.array([[0, 1], [1, 0]]))
    assert mixed.matrix(2, 2).tolist() == [[0, 1], [1, 0]]
    assert Placement.interleaved(2, 2).stages_of(1) == (1, 3)


def test_a_linear_problem_is_one_stage_a_rank() -> None:
    problem = Problem.linear(Profile((STAGE,) * 2, 2), 3, objective=Objective.MAKESPAN)
    assert (problem.ranks, problem.stages, problem.limited) == (2, 2, False)
    assert Problem.linear(problem.profile, 3, 5.0).limited


def test_costs_put_each_delay_where_it_is_paid() -> None:
    small = StageProfile(1.0, 2.0, 3.0, activation_bytes=1e6)
    large = StageProfile(1.0, 2.0, 3.0, activation_bytes=2e6)
    profile = Profile((small, large, large), 2, links=Links(Link(0.0, 1.0)))
    placement = Placement.of_stages((0, 1, 1))
    costs = Costs.of(Problem(profile, 1, placement, (math.inf,) * 2))
    assert costs.durations[:4, 0].tolist() == [1.0, 2.0, 3.0, 5.0]
    # stage 0 sends 1 MB to stage 1 and is sent as much back; stages 1 and 2 share a rank
    assert costs.into_f.ravel().tolist() == [0.0, 1.0, 0.0]
    assert costs.into_b.ravel().tolist() == [1.0, 0.0, 0.0]


def test_a_spread_is_of_all_stages_or_of_each_and_follows_them() -> None:
    document = dump_profile(Profile((STAGE,) * 3, 3))
    assert "spread" not in document
    for given, each in ((0.05, [0.05] * 3), ([0.1, 0, 1], [0.1, 0.0, 1.0])):
        profile = parse_profile({**document, "spread": given}, "profile")
        assert [stage.spread for stage in profile.stages] == each
        assert dump_profile(profile)["spread"] == given
        assert parse_profile(dump_profile(profile), "again") == profile
        assert [stage.spread for stage in profile.split(2).stages] == np.repeat(each, 2).tolist()


def test_a_stage_of_several_layers_has_their_mean_spread_by_time() -> None:
    layers = [replace(STAGE, spread=0.2), replace(STAGE.changed(_double), spread=None)]
    assert joined(layers).spread == pytest.approx(0.2 / 3)
    assert joined([STAGE, STAGE]).spread is None


def _double(stage: StageProfile) -> StageProfile:
    return replace(stage, t_f=2 * stage.t_f, t_b=2 * stage.t_b, t_w=2 * stage.t_w)


def test_a_single_entry_is_shared_as_in_a_file() -> None:
    shared = Profile((STAGE,), 4)
    assert (shared.stages, shared.num_stages) == ((STAGE,) * 4, 4)
    assert Profile((STAGE,), 4, shared_by=8).stages == (STAGE,) * 8
    alone = Profile((STAGE,), 4, shared_by=1)
    assert replace(alone, t_comm=1.0).stages == alone.stages == (STAGE,)
    for profile in (shared, alone):
        assert load_profile(dump_profile(profile)) == profile
