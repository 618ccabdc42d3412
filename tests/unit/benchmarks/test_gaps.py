"""The benchmark of gaps by kind."""

from __future__ import annotations

import pytest

from benchmarks.gaps import figures, main, merged, misses, table
from benchmarks.gaps.instances import KINDS, RANKS, problem_of
from pipeloom.solver.bounds.feasibility import check_feasible


@pytest.mark.parametrize("kind", KINDS)
def test_instances_have_schedules_and_the_seed_decides_them(kind: str) -> None:
    for number in range(len(RANKS)):
        problem = problem_of(kind, number, 17)
        check_feasible(problem)
        assert problem == problem_of(kind, number, 17)
        assert problem != problem_of(kind, number, 18)


def test_figures_by_kind() -> None:
    cells = [{"kind": "v", "gap": gap / 1000} for gap in (0, 0, 1, 2, 5, 8, 9, 20, 25, 60)]
    assert figures(cells) == pytest.approx({"median": 0.0065, "nine of ten": 0.025, "worst": 0.06})
    assert table(cells)[2] == "| v | 10 | 0.65% | 2.50% | 6.00% |"
    assert list(misses(cells)) == ["v: worst 6.00% is above 5%"]


def test_a_record_keeps_the_instances_that_did_not_run() -> None:
    before = [{"kind": kind, "number": n, "gap": 1} for kind in ("v", "wave") for n in (0, 1)]
    after = merged(before, [{"kind": "wave", "number": 0, "gap": 2}])
    assert [each["gap"] for each in after] == [1, 1, 2, 1]
    assert [each["kind"] for each in merged(after[2:], after[:2])] == ["v", "v", "wave", "wave"]


def test_a_record_of_some_instances_has_the_limit_of_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--kinds", "v", "--work", "1", "--record"])
    assert ended.value.code == 2
    assert "results/gaps-by-work.json" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    "given", [["--kinds", "w"], ["--numbers", "10"], ["--seconds", "x"], ["--work", "x"]]
)
def test_wrong_arguments_are_one_line(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(given)
    assert ended.value.code == 2
    assert given[0] in capsys.readouterr().err.splitlines()[-1]
