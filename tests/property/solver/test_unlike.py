"""Microbatches that are unlike: optima of tiny instances, verified schedules, no bound above."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipeloom.ir import (
    InfeasibleError,
    InputError,
    Objective,
    Placement,
    Problem,
    Profile,
    StageProfile,
    dump_layers,
    dump_profile,
    dump_schedule,
    parse_layers,
    parse_profile,
    parse_schedule,
    verify_schedule,
)
from pipeloom.solver import (
    FAMILIES,
    build_family,
    lower_bounds,
    solve,
)

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


def test_the_largest_of_each_stage_need_not_fit_at_once() -> None:
    """No microbatch holds more than 3 on both stages; the largest of each are 4."""
    rows = [(2.0, 1.0), (1.0, 2.0)]
    stages = tuple(StageProfile.of([StageProfile(1, 1, 1, m_b) for m_b in row]) for row in rows)
    problem = Problem(Profile(stages, 1), 2, Placement.of_stages((0, 0)), (3.0,))
    assert solve(problem, solver="heuristic", work_limit=0.1).known_timing.period == 12.0


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
    """A random instance is solved or infeasible: verified, no bound above, repeatable."""
    rng = np.random.default_rng([18, seed])
    (placement, ranks, number), microbatches = _placement(rng), int(rng.integers(2, 9))
    stages = [_stage(rng, microbatches, whole=seed % 3 == 0) for _ in range(number)]
    sized: list[Any] = [stage | {"weight_bytes": 2e6, "grad_bytes": 2e6} for stage in stages]
    limit = float(rng.choice((1e9, rng.uniform(2, 5) * number / ranks + 2)))
    links = {"gigabytes_per_second": 1.0}
    profile = parse_profile(_profile(ranks, sized, links=links), "profile")
    objective = list(Objective)[int(rng.integers(2))]
    problem = Problem(profile, microbatches, placement, (limit,) * ranks, objective)
    try:
        bounds = list(lower_bounds(problem))
        found, again = (solve(problem, work_limit=0.5, seed=seed) for _ in range(2))
    except InfeasibleError:
        return
    assert verify_schedule(dump_schedule(found)) == []
    cost = found.known_timing.cost(objective)
    assert max(bound.value for bound in bounds) <= cost * (1 + 1e-9)
    assert [row.tolist() for row in again.order] == [row.tolist() for row in found.order]


@pytest.mark.parametrize("seed", range(8))
def test_random_instances(seed: int) -> None:
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
