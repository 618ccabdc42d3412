"""The frontier of a sweep as a picture."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from pipeloom.report import Frontier, FrontierPoint, frontier_svg


def frontier(*points: FrontierPoint) -> Frontier:
    return Frontier("a sweep", "period", points, [("1f1b", 8.0, 0.25)])


def test_filled_points_are_the_proven_ones() -> None:
    svg = frontier_svg(
        frontier(FrontierPoint(8, 0.2, 0.2, True), FrontierPoint(16, 0.1, 0.05, False))
    )
    ElementTree.fromstring(svg)
    fills = re.findall(r'<circle [^>]*r="5" fill="(#\w+)"', svg)
    assert len(fills) == 2
    assert fills[1] == "#fff" != fills[0]


def test_a_bound_that_is_unknown_is_not_drawn() -> None:
    drawn = frontier_svg(frontier(FrontierPoint(8, 0.2, 0.1, False)))
    not_drawn = frontier_svg(frontier(FrontierPoint(8, 0.2, None, False)))
    assert drawn.count("stroke-dasharray") == not_drawn.count("stroke-dasharray") + 1


def test_one_limit_is_a_picture_too() -> None:
    ElementTree.fromstring(frontier_svg(frontier(FrontierPoint(8, 0.0, 0.0, True))))
    ElementTree.fromstring(frontier_svg(Frontier("nothing fits", "period", [], [])))
