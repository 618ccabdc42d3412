"""Rows and targets of whole steps with stages as graphs."""

from __future__ import annotations

import pytest

from benchmarks.graphs.measuring import ratios
from benchmarks.graphs.steps import OURS, SPLIT, WHOLE, Case, judged, summary, table


def row(width: int, **ms: float) -> dict[str, object]:
    times = {"eager": 10.0, "aten": 10.0, "inductor": 9.0, SPLIT: 11.0, WHOLE: 11.0}
    return {"width": width, "ranks": 2, "ms": {**times, **ms}, "torch_says": ""}


def test_a_step_counts_from_the_first_ranks_start_to_the_last_ranks_end() -> None:
    ways = (*OURS, SPLIT, WHOLE)
    ranks = {0: [(0.0, 0.01), (1.0, 1.03)], 1: [(0.005, 0.02), (1.01, 1.02)]}
    taken = {key: [0.01, 0.02] for key in ways}
    found = summary(
        Case(64, 2), {r: (dict.fromkeys(ways, spans), taken, "no") for r, spans in ranks.items()}
    )
    assert found["ms"] == pytest.approx(dict.fromkeys(ways, 25.0))
    assert found["cpu_ms"] == pytest.approx(dict.fromkeys(ways, 30.0))
    assert found["torch_says"] == "no"
    assert table([found])[-1] == "| 64 | 2 |" + " 25.0 (30.0) |" * len(ways)


@pytest.mark.parametrize(
    ("width", "inductor", "met"),
    [(64, 9.0, True), (128, 10.0, False), (256, 10.0, True), (256, 10.1, False)],
)
def test_compiled_stages_are_judged_against_eager_by_width(
    width: int, inductor: float, met: bool
) -> None:
    against_eager, *others = judged([row(width, inductor=inductor)]).values()
    assert against_eager is met
    assert all(others)


@pytest.mark.parametrize("other", [SPLIT, WHOLE])
def test_compiled_stages_are_below_torchs(other: str) -> None:
    missed = [name for name, met in judged([row(64, **{other: 9.0})]).items() if not met]
    assert missed == [f"zb-h1, d = 64, 2 ranks: inductor below {other} (1.000)"]


def test_b_and_w_are_judged_round_by_round() -> None:
    rounds = [{"bw": 10.0, "b_w": 10.2}, {"bw": 20.0, "b_w": 20.2}, {"bw": 40.0, "b_w": 40.1}]
    found = ratios(dict.fromkeys(("eager", "aten", "torch.compile"), rounds), "aten")
    assert found == {"of_eager": pytest.approx(1.01), "of_compiled": pytest.approx(1.01)}
