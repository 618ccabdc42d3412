"""The picture of plans: its axes have the range of the plans, the best is above all others."""

from __future__ import annotations

import re

import pytest

from pipeloom.report.svg.plans import BEST, PlanPoint, PlansPicture, plans_svg


@pytest.mark.parametrize(("memory", "tokens"), [(69.4, 7349.7), (0.3, 5.0), (79.1, 1e6)])
def test_marks_are_spread_over_the_picture_with_the_best_last(memory: float, tokens: float) -> None:
    points = [PlanPoint("best", memory, tokens), PlanPoint("next", memory, 0.97 * tokens)]
    picture = plans_svg(PlansPicture("plans", points, 79.1, 1.02 * tokens))
    marks = re.findall(r"<circle[^>]*>", picture)
    assert [BEST in re.findall(r'fill="([^"]*)"', mark) for mark in marks] == [False, True]
    low, high = (float(re.findall(r'cy="([\d.]+)"', mark)[0]) for mark in marks)
    assert 76 < high < low - 30 < 470 - 30
