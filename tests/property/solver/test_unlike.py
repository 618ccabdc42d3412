"""Microbatches that are unlike: optima of tiny instances, verified schedules, no bound above."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

from pipeloom.ir.errors import InfeasibleError, InputError
from pipeloom.ir.formats import dump_profile, dump_schedule, parse_profile, parse_schedule
from pipeloom.ir.formats.profile_json import dump_layers, parse_layers
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.verify.certificate import CLOSED_FORMS
from pipeloom.ir.verify.certificates.rows import NotProvenError
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.report.bars import memory_steps
from pipeloom.solver.bounds import lower_bound, lower_bounds
from pipeloom.solver.core.bound import Bound
from pipeloom.solver.core.incumbent import Incumbent
from pipeloom.solver.core.options import SolveOptions
from pipeloom.solver.core.stopping import Budget
from pipeloom.solver.exact.orders.target_bisection import ask
from pipeloom.solver.exact.orders.unlike_interleaving import UnlikeInterleaving
from pipeloom.solver.families import FAMILIES, build_family
from pipeloom.solver.optimize import optimize, plan_unlike
from tests.support.certified import facts_of
from tests.support.oracle import exhaustive_optimum

SHAPES = [((0, 1), 2), ((0, 1, 2), 2), ((0, 0), 1), ((0,), 3)]
"""Owners of stages, and microbatches, of which all orders can be tried."""


def _stage(rng: np.random.Generator, microbatches: int, *, whole: bool) -> dict[str, list[float]]:
    def drawn(low: float, high: float) -> list[float]:
        values = rng.uniform(low, high, microbatches)
        return (values.round() if whole else values).tolist()

    m_b, share = drawn(1, 4), float(rng.choice((0.0, 0.5, 1.0)))
    sizes = {"m_b": m_b, "m_w": [share * m for m in m_b]}
    sizes |= {"activation_bytes": [1e6 * float(t) for t in drawn(0, 8)]}
    return {"t_f": drawn(0, 6), "t_b": drawn(1, 6), "t_w": drawn(0, 4), **sizes}


def _profile(ranks: int, stages: list[Any], **keys: Any) -> dict[str, Any]:
    head = {"format": "pipeloom.profile", "version": 1, "ranks": ranks}
    return head | {"stages": stages} | keys


@pytest.mark.parametrize("seed", range(16))
def test_optimum_of_tiny_instances(seed: int) -> None:
    rng = np.random.default_rng(seed)
    owner, microbatches = SHAPES[seed % len(SHAPES)]
    ranks = max(owner) + 1
    stages = [_stage(rng, microbatches, whole=seed % 3 == 0) for _ in owner]
    limit = float(rng.uniform(4, 9)) if seed % 2 else 1e9
    placement = Placement.interleaved(ranks, len(owner) // ranks)
    links = {"gigabytes_per_second": 1.0}
    profile = parse_profile(_profile(ranks, stages, links=links), "profile")
    for objective in Objective:
        problem = Problem(profile, microbatches, placement, (limit,) * ranks, objective)
        optimum = exhaustive_optimum(problem)
        if optimum == np.inf:
            with pytest.raises(InfeasibleError):
                optimize(problem, work_limit=1)
            continue
        for bound in lower_bounds(problem):
            assert bound.value <= optimum * (1 + 1e-9), bound
        assert_certified_below(problem, optimum)
        found = optimize(problem, work_limit=1)
        assert verify_schedule(dump_schedule(found)) == []
        assert found.known_timing.cost(objective) == pytest.approx(optimum, rel=1e-6)
        if profile.unlike:
            assert_model_of_all_orders(problem, optimum)


def assert_model_of_all_orders(problem: Problem, optimum: float) -> None:
    """The model has a schedule of the optimum, and refutes what is just below."""
    make = partial(UnlikeInterleaving, problem, number=problem.microbatches)
    for target, met in ((optimum * (1 + 1e-9), True), (optimum * (1 - 1e-4), False)):
        best = Incumbent(problem, Bound(0.0, "none", ""), SolveOptions())
        assert ask(best, make, target, Budget(60.0), seed=0)
        assert best.bound.value == pytest.approx(0.0 if met else target)
        assert (best.cost <= optimum * (1 + 1e-6)) == met
        fewer = partial(UnlikeInterleaving, problem, number=problem.microbatches - 1)
        ask(best, fewer, optimum * (1 + 1e-9), Budget(60.0), seed=0)
        assert best.bound.value <= optimum * (1 + 1e-9)
        assert best.cost >= optimum * (1 - 1e-9)


def test_the_largest_of_each_stage_need_not_fit_at_once() -> None:
    """No microbatch holds more than 3 on both stages; the largest of each are 4."""
    rows = [(2.0, 1.0), (1.0, 2.0)]
    stages = tuple(StageProfile.of([StageProfile(1, 1, 1, m_b) for m_b in row]) for row in rows)
    problem = Problem(Profile(stages, 1), 2, Placement.of_stages((0, 0)), (3.0,))
    assert optimize(problem, solver="heuristic", work_limit=0.1).known_timing.period == 12.0


def test_few_orders_of_more_microbatches_are_searched() -> None:
    rng = np.random.default_rng(1)
    stages = [_stage(rng, 6, whole=False) for _ in range(3)]
    problem = Problem.linear(parse_profile(_profile(3, stages), "profile"), 6, 8.0)
    found = optimize(problem, work_limit=40)
    assert found.known_report.bound == "interleaving"
    assert verify_schedule(dump_schedule(found)) == []


def assert_certified_below(problem: Problem, optimum: float) -> None:
    """No argument of a certificate proves more."""
    facts, stages = facts_of(problem), range(problem.stages)
    rng = np.random.default_rng(problem.stages)
    arguments: list[dict[str, Any]] = [{"kind": "critical-path"}]
    arguments += [
        {"kind": kind, "rank": rank}
        for kind in ("work", "memory-time", "head-tail")
        for rank in range(problem.ranks)
    ]
    for stage, by, _ in product(stages, stages, range(3)):
        number = int(rng.integers(1, problem.microbatches + 1))
        chosen = rng.permutation(problem.microbatches)[:number].tolist()
        arguments.append({"kind": "through", "stage": stage, "by": by, "microbatches": chosen})
    for argument in arguments:
        with suppress(NotProvenError):
            proven = CLOSED_FORMS[argument["kind"]](facts, argument)
            assert proven <= optimum * (1 + 1e-9), argument


@pytest.mark.parametrize("seed", range(4))
def test_schedules_of_many_microbatches_keep_the_rules(seed: int) -> None:
    rng = np.random.default_rng(seed)
    stages = [_stage(rng, 7, whole=False) for _ in range(6)]
    profile = parse_profile(_profile(3, stages, t_comm=0.5), "profile")
    placement = (Placement.interleaved(3, 2), Placement.v(3))[seed % 2]
    objective = list(Objective)[seed // 2]
    problem = Problem(profile, 7, placement, (14.0,) * 3, objective)
    found = optimize(problem, work_limit=2)
    assert verify_schedule(dump_schedule(found)) == []
    again = optimize(problem, work_limit=2)
    assert [row.tolist() for row in again.order] == [row.tolist() for row in found.order]


def _placement(rng: np.random.Generator) -> tuple[Placement, int, int]:
    """Any of those planned for unlike microbatches, with its ranks and stages."""
    ranks = int(rng.integers(1, 5))
    uneven = sorted([*range(ranks), *rng.integers(ranks, size=2).tolist()])
    chunks, stages = int(rng.integers(1, 4)), int(rng.integers(1, 5))
    ways = (
        (Placement.linear(ranks), ranks),
        (Placement.interleaved(ranks, chunks), ranks * chunks),
        (Placement.v(ranks), 2 * ranks),
        (Placement.wave(ranks, 2), 4 * ranks),
        (Placement.of_stages(uneven), len(uneven)),
        (Placement.round_robin(ranks), stages),
    )
    placement, number = ways[int(rng.integers(len(ways)))]
    return placement, ranks, number


def _check(seed: int) -> None:
    """One random instance: solved or said to be infeasible, verified, no bound above; of the tiny
    ones, each fourth, no bound above the optimum."""
    rng = np.random.default_rng([18, seed])
    tiny = seed % 4 == 0
    owner, microbatches = SHAPES[int(rng.integers(len(SHAPES)))]
    ranks, number = max(owner) + 1, len(owner)
    placement = Placement.interleaved(ranks, number // ranks)
    if not tiny:
        (placement, ranks, number), microbatches = _placement(rng), int(rng.integers(2, 9))
    stages = [_stage(rng, microbatches, whole=seed % 3 == 0) for _ in range(number)]
    sized: list[Any] = [stage | {"weight_bytes": 2e6, "grad_bytes": 2e6} for stage in stages]
    limit = float(rng.choice((1e9, rng.uniform(2, 5) * number / ranks + 2)))
    links = {"gigabytes_per_second": 1.0}
    profile = parse_profile(_profile(ranks, sized, links=links), "profile")
    objective = list(Objective)[int(rng.integers(2))]
    problem = Problem(profile, microbatches, placement, (limit,) * ranks, objective)
    optimum = exhaustive_optimum(problem) if tiny else None
    try:
        bounds = list(lower_bounds(problem))
        found = optimize(problem, work_limit=0.5, seed=seed)
    except InfeasibleError:
        assert optimum in {None, np.inf}
        return
    assert verify_schedule(dump_schedule(found)) == []
    cost = found.known_timing.cost(objective)
    assert max(bound.value for bound in bounds) <= (optimum or cost) * (1 + 1e-9)
    assert optimum is None or cost >= optimum * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_random_instances(seed: int) -> None:
    _check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 2000, 100))
def test_two_thousand_random_instances(first: int) -> None:
    for seed in range(first, first + 100):
        _check(seed)


@pytest.mark.parametrize("seed", range(3))
def test_families_keep_the_rules_and_round_trip(seed: int) -> None:
    rng = np.random.default_rng(seed)
    more = {"activation_bytes": rng.uniform(1e6, 1e8, 6).tolist(), "weight_bytes": 1e6}
    more |= {"t_bw": rng.uniform(1, 7, 6).tolist()} if seed else {"t_fb": 9.0}
    stages = [_stage(rng, 6, whole=False) | more for _ in range((3, 6, 2)[seed])]
    links = {"latency": 0.1, "gigabytes_per_second": 25.0}
    profile = parse_profile(_profile((3, 3, 2)[seed], stages, links=links), "profile")
    assert parse_profile(dump_profile(profile), "again") == profile
    built = []
    for name in FAMILIES:
        try:
            schedule = build_family(name, profile, 6)
        except InputError:  # not for so many stages or ranks
            continue
        document = dump_schedule(schedule)
        assert verify_schedule(document) == [], name
        assert dump_schedule(parse_schedule(document, "again")) == document
        built.append(name)
    assert len(built) > 8


def test_lists_that_are_constant_are_numbers() -> None:
    stages = [_stage(np.random.default_rng(s), 1, whole=False) for s in range(2)]
    lists = [{key: value * 5 for key, value in stage.items()} for stage in stages]
    numbers = [{key: value[0] for key, value in stage.items()} for stage in stages]
    listed = parse_profile(_profile(2, lists), "profile")
    assert (listed.microbatches, listed.unlike) == (5, False)
    assert replace(listed, microbatches=None) == parse_profile(_profile(2, numbers), "profile")
    assert parse_profile(dump_profile(listed), "again") == listed


def test_layers_are_summed_microbatch_by_microbatch() -> None:
    rng = np.random.default_rng(1)
    layers = [_stage(rng, 3, whole=False) | {"name": f"layer {n}"} for n in range(4)]
    document = _profile(2, []) | {"layers": layers}
    del document["stages"]
    profile = parse_layers(document, "profile")
    assert parse_layers(dump_layers(profile), "again") == profile
    first, second = profile.cut((0, 1)).stages
    assert [one.t_f for one in first.each] == pytest.approx(layers[0]["t_f"])
    sums = [sum(column) for column in zip(*(layer["m_b"] for layer in layers[1:]), strict=True)]
    assert [one.m_b for one in second.each] == pytest.approx(sums)
    assert second.m_b == pytest.approx(sum(sums) / 3)


def test_memory_in_pictures_is_that_of_each_microbatch() -> None:
    stages = [_stage(np.random.default_rng(s), 5, whole=False) for s in range(2)]
    schedule = build_family("zb-h1", parse_profile(_profile(2, stages), "profile"), 5)
    for rank, peak in enumerate(schedule.known_timing.peak_memory):
        assert max(held for _, held in memory_steps(schedule, rank)) == pytest.approx(peak)


def test_a_fallback_in_another_order_is_still_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else time that is up would end the search while its kernels are compiled."""
    seen = list[bool]()

    class Compiling:
        def first(self, best: Incumbent) -> None:
            seen.append(best.order is not None and not best.built)

    rng = np.random.default_rng(5)
    stages = [_stage(rng, 4, whole=False) for _ in range(3)]
    problem = Problem.linear(parse_profile(_profile(3, stages), "profile"), 4, 4.2)
    best = Incumbent(problem, lower_bound(problem), SolveOptions())
    monkeypatch.setattr("pipeloom.solver.unlike._list_tuner", lambda *_: Compiling())
    next(plan_unlike(best, 0, "heuristic"))
    assert seen == [True]
