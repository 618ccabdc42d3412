"""The search's arithmetic is the cost model's, whatever moves it tried before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipeloom import Problem, Profile, Schedule, StageProfile, build_family
from pipeloom.ir import timed
from pipeloom.planner.packing.search import by_replica, cost_of, improved
from pipeloom.solver.construct.entry_orders import entry_orders
from tests.support.inner import SequenceCosts, SolveOptions, parse_lengths


def test_a_packing_costs_what_its_problems_do_and_keeps_the_tokens() -> None:
    lengths = np.random.default_rng(1).integers(1, 60, 16).tolist()
    document: dict[str, Any] = {
        "format": "pipeloom.lengths", "version": 1, "lengths": lengths, "reference_length": 50,
        "attention": 0.3,
    }  # fmt: skip
    problem = Problem.linear(Profile((StageProfile(2.0, 3.0, 1.5, 1.0, 0.4),) * 3, 3, 0.1), 4, 9.0)
    costs = SequenceCosts.of(problem, parse_lengths(document, "lengths"), "lengths")
    orders = [build_family("1f1b", problem.profile, 4).order] * 2
    packed = [[2 * j, 2 * j + 1] for j in range(8)]
    most = 1.2 * max(sum(lengths[i] for i in each) for each in packed)
    found = improved(costs, packed, orders, most, SolveOptions(work_limit=0.2))
    assert sorted(i for each in found for i in each) == list(range(16))
    assert max(sum(lengths[i] for i in each) for each in found) <= most
    assert cost_of(costs, found, orders) < cost_of(costs, packed, orders)
    for each in (packed, found):
        parts = zip(by_replica(each, 4), orders, strict=True)
        spans = [timed(Schedule(costs.problem_of(part), order)).timing for part, order in parts]
        slowest = max(span.period for span in spans if span is not None)
        assert cost_of(costs, each, orders) == pytest.approx(slowest, rel=1e-12)


def test_all_microbatches_enter_though_they_are_alike() -> None:
    problem = Problem.linear(Profile((StageProfile(2.0, 3.0, 1.5, 1.0, 0.4),) * 3, 3, 0.1), 4, 9.0)
    assert all(sorted(order) == [0, 1, 2, 3] for order in entry_orders(problem))
