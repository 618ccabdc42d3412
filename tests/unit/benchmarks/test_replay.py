"""The replay: its questions, one answer of the optimizer, and what counts as worse."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from benchmarks.replay.asking import SEEDS, ask
from benchmarks.replay.comparing import worse
from benchmarks.replay.instances import Question, questions

KNOWN = {
    "profile": "p", "status": ["optimal"] * 4 + ["feasible"] * 2,
    "cost": [100.0, 100.0, 100.0, 100.0, 101.0, 102.0], "proven": [100.0] * 5 + [99.0],
    "order": "a", "bounds": {"work": 90.0, "head-tail": 100.0}, "seconds": 1.0,
}  # fmt: skip
FAMILY = {"profile": "p", "order": "a", "seconds": 1.0}


def question(limit: float) -> Question:
    stage = {"t_f": 2.0, "t_b": 2.0, "t_w": 1.0, "m_b": 1.0, "m_w": 0.4}
    profile = {"format": "pipeloom.profile", "version": 1, "ranks": 2, "stages": [stage]}
    limited = profile | {"t_comm": 0.1, "memory_limit": limit}
    return Question("equal", "a question", limited, 2, {"placement": "linear"}, 1.0)


def test_at_least_150_questions_of_all_kinds_with_names_of_their_own() -> None:
    asked = list(questions())
    assert len({each.name for each in asked}) == len(asked) >= 150
    assert min(Counter(each.kind for each in asked).values()) >= 3
    assert all("placement" in each.options for each in asked)


def test_an_answer_has_an_entry_for_each_seed_and_the_bounds_by_name() -> None:
    found = ask(question(4.0))
    assert found["status"] == ["optimal"] * len(SEEDS)
    assert found["cost"] == pytest.approx(found["proven"])
    assert max(found["bounds"].values()) == pytest.approx(found["cost"][0])
    infeasible = ask(question(0.5))
    assert (infeasible["status"][0], infeasible["smallest"][0]) == ("infeasible", 1.0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seconds": 9.0, "order": "b"}, []),
        ({"cost": [100.0] * 3 + [100.8] * 3}, []),
        ({"cost": [100.0] * 2 + [100.8] * 4},
         ["median cost: 100 before, 100.8 now (+0.80%)"]),
        ({"cost": [101.5] * 6}, [
            "median cost: 100 before, 101.5 now (+1.50%)",
            "best cost: 100 before, 101.5 now (+1.50%)",
        ]),
        ({"cost": [99.0] * 6}, []),
        ({"cost": [None] * 6}, ["no schedule now"]),
        ({"proven": [99.0] * 6}, ["proven bound: 100.0 before, 99.0 now (-1.00%)"]),
        ({"bounds": {"work": 80.0, "head-tail": 100.0}},
         ["bound work: 90.0 before, 80.0 now"]),
        ({"bounds": {"moments": 95.0}}, ["bound head-tail: 100.0 before, 95.0 now"]),
        ({"bounds": {"moments": 101.0}}, []),
        ({"status": ["optimal"] * 2 + ["feasible"] * 4}, [
            "optimal before, feasible now (optimal, optimal, feasible, feasible, feasible, "
            "feasible)"
        ]),
        ({"profile": "q"}, ["another profile than the one recorded"]),
    ],
)  # fmt: skip
def test_what_is_worse_is_named(change: dict[str, Any], words: list[str]) -> None:
    assert list(worse(KNOWN, KNOWN | change)) == words


def test_a_family_may_not_change_at_all() -> None:
    assert list(worse(FAMILY, FAMILY | {"order": "b"})) == ["order: a before, b now"]
