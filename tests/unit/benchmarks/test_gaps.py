"""The benchmark of gaps by kind."""

from __future__ import annotations

import pytest

from benchmarks.gaps import figures, main, misses, table
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


@pytest.mark.parametrize(
    "given", [["--kinds", "w"], ["--numbers", "10"], ["--seconds", "x"], ["--work", "x"]]
)
def test_wrong_arguments_are_one_line(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(given)
    assert ended.value.code == 2
    assert given[0] in capsys.readouterr().err.splitlines()[-1]
