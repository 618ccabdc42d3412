"""The moves of the local search, seen on short orders."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pipeloom.ir.cost.simulator import Simulator
from pipeloom.ir.model.ops import IntArray, format_order, pack, parse_order, split_backwards, unpack
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.solver.bounds import lower_bound
from pipeloom.solver.construct.one_at_a_time import one_at_a_time
from pipeloom.solver.core.incumbent import Incumbent
from pipeloom.solver.core.kernels import random
from pipeloom.solver.core.options import SolveOptions
from pipeloom.solver.search.kernels.moves import critical_blocks, keeps_rules, note, shift
from pipeloom.solver.search.local_search import Annealer


def order(text: str) -> IntArray:
    return pack(parse_order(text))


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        (1, 3, "0F0 0B0 0W0 0F1 0F2"),
        (3, 1, "0F0 0W0 0F1 0B0 0F2"),
        (3, 4, "0F0 0F1 0B0 0F2 0W0"),
    ],
)
def test_shift_moves_one_op(source: int, target: int, expected: str) -> None:
    ops = order("0F0 0F1 0B0 0W0 0F2")
    shift(ops, source, target)
    assert format_order(unpack(ops)) == expected


def test_ops_of_one_kind_keep_their_sequence() -> None:
    ops = order("0F0 0F1 0B0 0F2 0W0")
    shift(ops, 0, 4)
    assert format_order(unpack(ops)) == "0F0 0B0 0F1 0W0 0F2"
    shift(ops, 4, 0)
    assert format_order(unpack(ops)) == "0F0 0F1 0B0 0F2 0W0"


@pytest.mark.parametrize(
    ("text", "limit", "keeps"),
    [
        ("0F0 0F1 0B0 0B1 0W0 0W1", 2.0, True),
        ("0F0 0F1 0B0 0B1 0W0 0W1", 1.9, False),
        ("0F0 0B0 0F1 0B1 0W0 0W1", 1.5, True),
        ("0F0 0B0 0W0 0F1 0B1 0W1", 1.0, True),
        ("0B0 0F0 0W0 0F1 0B1 0W1", math.inf, False),
        ("0F0 0W0 0B0 0F1 0B1 0W1", math.inf, False),
    ],
)
def test_rules_are_checked_on_the_order_alone(text: str, limit: float, keeps: bool) -> None:
    ops, sizes = order(text), np.array([1.0])
    done = np.zeros((1, 2), dtype=np.int8)
    assert keeps_rules(ops, 0, 0, len(ops) - 1, sizes, sizes / 2, limit, None, done) == keeps
    assert not done.any()


def test_fused_backwards_are_split_in_place() -> None:
    assert format_order(unpack(split_backwards(order("0F0 0BW0 0F1 0B1 0W1 0F2 0BW2")))) == (
        "0F0 0B0 0W0 0F1 0B1 0W1 0F2 0B2 0W2"
    )


def test_random_numbers_are_even() -> None:
    state = np.array([7], dtype=np.uint64)
    draws = np.array([random(state) for _ in range(20_000)])
    counts, _ = np.histogram(draws, bins=10, range=(0, 1))
    assert counts.sum() == 20_000
    assert abs(counts - 2000).max() < 200


def test_annealing_turns_the_worst_order_into_a_good_one() -> None:
    stage = StageProfile(1.0, 1.0, 1.0, 1.0, 0.5)
    problem = Problem.linear(Profile((stage,) * 3, 3, 0.1), 6, 3.0)
    best = Incumbent(problem, lower_bound(problem), SolveOptions(time_limit=60))
    best.offer(one_at_a_time(problem), "one-at-a-time")
    worst = best.cost
    annealer = Annealer(problem, np.random.default_rng(0))
    for _ in range(3):
        annealer.round(best)
    assert best.bound.value <= best.cost * (1 + 1e-9)
    assert best.cost < 0.7 * worst
    schedule = best.schedule("heuristic", 0)
    assert max(schedule.known_timing.peak_memory) <= 3.0


def test_the_longest_path_runs_over_the_ops_that_delay_each_other() -> None:
    """Rank 1 has its first input at 1, waits for nothing after it, and sends B1 at 5::

    rank 0  F0 F1 .  .  B0 B1 W0 W1
    rank 1  .  F0 B0 F1 B1 W0 W1
    """
    stage = StageProfile(1.0, 1.0, 1.0)
    problem = Problem.linear(Profile((stage,) * 2, 2), 2)
    rows = (order("0F0 0F1 0B0 0B1 0W0 0W1"), order("1F0 1B0 1F1 1B1 1W0 1W1"))
    ops, offsets = np.concatenate(rows), np.array([0, 6, 12])
    simulator, owner = Simulator(problem, offsets), problem.placement.matrix(2, 2)
    assert simulator.cost(ops) == 8.0
    place, blocks = np.empty((2, 2, 2), dtype=np.int64), np.empty((12, 2), dtype=np.int64)
    note(ops, 0, 11, place)
    times = simulator.start, simulator.end
    number = critical_blocks(ops, offsets, offsets[1:], owner, *times, place, 0, blocks)
    assert blocks[:number].tolist() == [[3, 5], [6, 9]]
