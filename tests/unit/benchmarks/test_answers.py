"""The record of answers: its instances, one answer of the command line, and what counts as
worse."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from benchmarks.answers import check
from benchmarks.answers.asking import ask
from benchmarks.answers.comparing import broken, differences
from benchmarks.answers.instances import PROGRAMS, built, instances, searched
from benchmarks.answers.profiles import equal

KNOWN = {
    "command": ["optimize"], "profile": "p", "status": "optimal", "cost": 100.0,
    "lower_bound": 100.0, "order": "a", "seconds": 1.0,
}  # fmt: skip


def test_at_least_64_instances_of_all_kinds_with_names_of_their_own() -> None:
    asked = list(instances())
    assert len({each.name for each in asked}) == len(asked) >= 64
    assert min(Counter(each.kind for each in asked).values()) >= 3
    assert {3, 5, 6} <= {each.profile["ranks"] for each in asked}
    assert all("--work-limit" in each.options and "--seed" in each.options for each in asked)


def test_every_family_is_built_for_each_size_and_some_are_compiled() -> None:
    found = list(built(PROGRAMS))
    assert len({each.name for each in found}) == len(found)
    assert [each.command[1] for each in found if each.program] == list(PROGRAMS)


def test_an_answer_is_what_the_command_says() -> None:
    found = ask(searched("equal", equal(2, 2.0), 2, "--memory-limit", "4", work=1))
    assert found["status"] == "optimal"
    assert found["cost"] == pytest.approx(found["lower_bound"])
    assert len(found["order"]) == 64
    infeasible = ask(searched("infeasible", equal(2, 0.5), 2, work=1))
    assert (infeasible["status"], infeasible["smallest_memory_limit"]) == ("infeasible", 1.0)


def test_the_same_answers_are_no_worse(capsys: pytest.CaptureFixture[str]) -> None:
    assert check({"a": KNOWN}, {"a": KNOWN | {"seconds": 9.0}}, whole=True) == 0
    assert "1 as recorded to the last op, 0 worse" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cost": 100.2}, ["a: cost: worse by 0.200%", "cost: worse by 0.2000% on average"]),
        ({"cost": 100.05}, ["cost: worse by 0.0500% on average"]),
        ({"cost": 100.005}, []),
        ({"cost": 99.0}, []),
        ({"lower_bound": 99.0}, [
            "a: lower_bound: worse by 1.000%", "lower_bound: worse by 1.0000% on average",
        ]),
        ({"lower_bound": None}, ["a: lower_bound: 100.0 before, none now"]),
        ({"status": "feasible"}, ["a: optimal before, feasible now"]),
        ({"profile": "q"}, ["a: another profile than the one recorded"]),
        ({"order": "b"}, []),
    ],
)  # fmt: skip
def test_what_is_worse_is_said(change: dict[str, Any], words: list[str]) -> None:
    found = {"a": KNOWN | change}
    assert list(broken({"a": KNOWN}, found)) == words
    assert bool(list(differences({"a": KNOWN}, found))) == ("profile" not in change)


def test_a_family_may_not_change_at_all() -> None:
    family = KNOWN | {"command": ["build", "gpipe"]}
    assert list(broken({"a": family}, {"a": family | {"order": "b"}})) == [
        "a: order: a before, b now"
    ]


def test_an_instance_that_is_lost_or_new_is_worse() -> None:
    assert check({"a": KNOWN, "b": KNOWN}, {"a": KNOWN}, whole=True) == 1
    assert check({"a": KNOWN, "b": KNOWN}, {"a": KNOWN}, whole=False) == 0
    assert list(broken({}, {"a": KNOWN})) == ["a: not recorded"]
