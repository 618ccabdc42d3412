"""Certificates prove what they say, and nothing else is taken for a proof."""

import copy
import random
from functools import cache
from typing import Any

import pytest

import pipeloom
from pipeloom.ir.errors import InputError
from pipeloom.ir.formats import dump_schedule
from pipeloom.ir.formats.certificate import MOST_NODES
from pipeloom.ir.verify.certificate import verify_certificate
from pipeloom.ir.verify.certificates.linear import LinearFacts
from pipeloom.ir.verify.schedule_facts import read_facts
from pipeloom.solver.certificate import Refutation


def profile(seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    ranks = rng.choice([2, 3, 4, 5])
    times = ("t_f", "t_b", "t_w")
    stages = [
        {**{key: rng.uniform(2, 12) for key in times}, "m_b": 1.0, "m_w": rng.uniform(0.2, 1)}
        for _ in range(ranks)
    ]
    return {
        "format": "pipeloom.profile",
        "version": 1,
        "ranks": ranks,
        "t_comm": rng.choice([0, 0.5, 4]),
        "stages": stages,
        "memory_limit": rng.choice([ranks, 1.6 * ranks, 100]),
    }


@cache
def certified(seed: int, objective: str = "period") -> tuple[Any, dict[str, Any]]:
    options: dict[str, Any] = {"placement": "linear", "solver": "heuristic", "work_limit": 20}
    answer = pipeloom.optimize(profile(seed), 3 + seed % 7, objective=objective, **options)
    return answer, answer.certificate()


def faults(answer: Any, certificate: dict[str, Any]) -> list[str]:
    return verify_certificate(dump_schedule(answer.schedule), certificate, "certificate")


@pytest.mark.parametrize("objective", ["period", "makespan"])
@pytest.mark.parametrize("seed", range(12))
def test_what_is_certified_is_proven(seed: int, objective: str) -> None:
    answer, certificate = certified(seed, objective)
    known = answer.schedule.report.lower_bound
    if certificate["lower_bound"] >= known / (1 + 1e-6):
        assert faults(answer, certificate) == []
    else:  # by an argument that has no certificate
        assert answer.schedule.report.bound in ("crossings", "slots", "throughput")
        assert "which is proven, but less" in faults(answer, certificate)[0]


def test_multipliers_of_a_thousand_are_no_part_of_a_certificate() -> None:
    """What its memory's row misses by rounding was multiplied by 995, more than the margin."""
    stage = {"t_f": 0, "t_b": 0.1, "t_w": 1, "m_b": 1.8709819731024615, "m_w": 1.3820160502177083}
    one = {"format": "pipeloom.profile", "version": 1, "ranks": 1, "stages": [stage]}
    limit = stage["m_b"]
    answer = pipeloom.optimize(one, 3, memory_limit=limit, objective="makespan", work_limit=1)
    assert faults(answer, answer.certificate()) == []


@pytest.mark.parametrize("seed", range(12))
def test_no_cost_that_a_schedule_has_is_refuted(seed: int) -> None:
    """At the cost of a schedule, and above it, no tree can be made; what is made is no proof."""
    answer, certificate = certified(seed)
    instance = LinearFacts.of(read_facts(dump_schedule(answer.schedule), "schedule"))
    cost = answer.cost * 1.001
    assert Refutation(instance, cost).nodes() is None
    if certificate["argument"]["kind"] == "moments":
        assert faults(answer, certificate | {"lower_bound": cost})


def moments() -> tuple[Any, dict[str, Any]]:
    found = (certified(seed) for seed in range(12))
    trees = [pair for pair in found if len(pair[1]["argument"].get("nodes", ())) > 1]
    answer, certificate = trees[0]
    return answer, copy.deepcopy(certificate)


def test_every_change_of_a_tree_is_noticed() -> None:
    answer, certificate = moments()
    nodes = certificate["argument"]["nodes"]
    assert faults(answer, certificate) == []
    for at in range(len(nodes)):
        for broken in (nodes[:at], nodes[:at] + nodes[at + 1 :], [*nodes, nodes[at]]):
            changed = copy.deepcopy(certificate)
            changed["argument"]["nodes"] = broken
            assert faults(answer, changed), at


def test_multipliers_that_leave_a_solution_are_no_proof() -> None:
    answer, certificate = moments()
    leaves = [node for node in certificate["argument"]["nodes"] if "multipliers" in node]
    leaves[-1]["multipliers"] = []
    assert "leave a solution" in faults(answer, certificate)[0]
    leaves[-1]["multipliers"] = [{"inequality": "cost", "stage": 99, "by": 1.0}]
    assert "no inequality 'cost' of stage 99" in faults(answer, certificate)[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"objective": "makespan"}, "objective: expected the schedule's, period"),
        ({"lower_bound": 1e-3}, "which is proven, but less"),
        ({"argument": {"kind": "work", "rank": 77}}, "work: proves 0, expected"),
        ({"argument": {"kind": "critical-path"}}, "critical-path: proves"),
    ],
)
def test_what_proves_less_or_something_else_is_told(change: dict[str, Any], words: str) -> None:
    answer, certificate = moments()
    assert words in faults(answer, certificate | change)[0]


def test_a_bound_below_the_schedules_is_not_taken_for_proven() -> None:
    answer, certificate = moments()
    schedule = dump_schedule(answer.schedule)
    schedule["report"]["lower_bound"] *= 2
    certificate["lower_bound"] *= 1.5
    assert "argument: " in verify_certificate(schedule, certificate, "certificate")[0]


@pytest.mark.parametrize("key", ["format", "objective", "lower_bound", "argument"])
def test_another_shape_is_wrong_input(key: str) -> None:
    answer, certificate = moments()
    for value in (None, [], {"kind": "faith"}, "1"):
        with pytest.raises(InputError, match=key):
            faults(answer, certificate | {key: value})


def test_overlap_has_no_certificate() -> None:
    schedule, certificate = moments()
    document = dump_schedule(schedule.schedule)
    for stage in document["profile"]["stages"]:
        stage["t_fb"] = 1.0
    assert "knows no stages with t_fb" in verify_certificate(document, certificate, "c")[0]


def test_lists_of_equal_numbers_are_proven_as_numbers_are() -> None:
    answer, certificate = moments()
    document = dump_schedule(answer.schedule)
    for stage in document["profile"]["stages"]:
        stage["t_f"] = [stage["t_f"]] * document["microbatches"]
    assert verify_certificate(document, certificate, "certificate") == []
    document["profile"]["stages"][0]["t_f"][0] *= 2
    assert verify_certificate(document, certificate, "certificate") == []  # the least counts
    document["profile"]["stages"][0]["t_f"][0] /= 4
    assert verify_certificate(document, certificate, "certificate")


def test_a_schedule_without_a_bound_has_none_that_is_proven() -> None:
    answer, certificate = moments()
    document = dump_schedule(answer.schedule)
    document["report"] |= {"lower_bound": None, "gap": None, "status": "feasible"}
    found = verify_certificate(document, certificate, "certificate")
    assert found == ["proves a lower bound, but the schedule claims none"]


def test_too_many_nodes_are_said_in_plain_words() -> None:
    answer, certificate = moments()
    many = {"kind": "moments", "nodes": [{}] * (MOST_NODES + 1)}
    with pytest.raises(InputError, match=r"nodes: expected at most 1000000 entries, got"):
        faults(answer, certificate | {"argument": many})


def test_moments_are_no_whole_numbers_to_split() -> None:
    """A tree that left out all between 0 and 1 would prove any bound."""
    answer, certificate = moments()
    for moment in "SytVeC":
        nodes = [{"count": moment, "stage": 0, "most": 0}]
        changed = certificate | {"argument": {"kind": "moments", "nodes": nodes}}
        assert f"no count '{moment}' of stage 0" in faults(answer, changed)[0]
