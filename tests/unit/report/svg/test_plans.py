"""The picture of plans: its axes have the range of the plans, the best is above all others."""

from __future__ import annotations

import re

import pytest

from pipeloom.report.svg import plans


@pytest.mark.parametrize(("memory", "tokens"), [(69.4, 7349.7), (0.3, 5.0), (79.1, 1e6)])
def test_marks_are_spread_over_the_picture_with_the_best_last(memory: float, tokens: float) -> None:
    points = [
        plans.PlanPoint("best", memory, tokens),
        plans.PlanPoint("next", memory, 0.97 * tokens),
    ]
    picture = plans.plans_svg(plans.PlansPicture("plans", points, 79.1, 1.02 * tokens))
    marks = re.findall(r"<circle[^>]*>", picture)
    assert [plans.BEST in re.findall(r'fill="([^"]*)"', mark) for mark in marks] == [False, True]
    low, high = (float(re.findall(r'cy="([\d.]+)"', mark)[0]) for mark in marks)
    assert 104 < high < low - 30 < 470 - 30


@pytest.mark.parametrize(("device", "red"), [(72.0, True), (192.0, False)])
def test_a_limit_far_from_all_plans_is_told_and_leaves_no_empty_half(
    device: float, red: bool
) -> None:
    points = [plans.PlanPoint("best", 70.0, 100.0), plans.PlanPoint("next", 62.0, 90.0)]
    picture = plans.plans_svg(plans.PlansPicture("plans", points, device, 101.0))
    assert f"a device has {device:g} GiB{' (red)' if red else '<'}" in picture
    assert (f'stroke="{plans.LIMIT}"' in picture) is red
    best, other = sorted(float(at) for at in re.findall(r'<circle[^>]* cx="([\d.]+)"', picture))
    assert other - best > (plans.WIDTH - plans.LEFT - plans.RIGHT) / 2
