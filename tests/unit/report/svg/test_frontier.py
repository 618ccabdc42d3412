"""The frontier of a sweep as a picture."""

from __future__ import annotations

import re
from itertools import combinations
from xml.etree import ElementTree

import pytest

from pipeloom.report import Frontier, FrontierPoint, frontier_svg

LINE = r'<path d="(M[^"]*)" stroke="#\w+" stroke-width="1"'


def picture(*points: FrontierPoint) -> str:
    svg = frontier_svg(Frontier("a sweep", "period", points, [("1f1b", 8.0, 0.25)]))
    ElementTree.fromstring(svg)
    return svg


def test_filled_points_are_the_proven_ones_and_an_unknown_bound_is_not_drawn() -> None:
    svg = picture(FrontierPoint(8, 0.2, 0.2, True), FrontierPoint(16, 0.1, 0.05, False))
    circles = re.findall(r'<circle [^>]*cy="([\d.]+)" r="5" fill="(#\w+)"', svg)
    (high, proven), (low, other) = ((float(y), fill) for y, fill in circles)
    assert proven != other == "#fff"
    (bounds,) = re.findall(r'<path d="([^"]*)" stroke="#8a97a6" [^>]*stroke-dasharray', svg)[:1]
    on, beneath = (float(y) for y in re.findall(r"V([\d.]+)", bounds))
    assert high == pytest.approx(on, abs=0.02)  # smaller values are higher up
    assert high < low < beneath - 1
    drawn, not_drawn = (picture(FrontierPoint(8, 0.2, bound, False)) for bound in (0.1, None))
    assert drawn.count("stroke-dasharray") == not_drawn.count("stroke-dasharray") + 1
    picture(FrontierPoint(8, 0.0, 0.0, True))  # a single limit can be drawn too
    ElementTree.fromstring(frontier_svg(Frontier("nothing fits", "period", [], [])))


def test_a_family_that_another_beats_in_both_is_left_out() -> None:
    marks = [("1f1b", 8.0, 0.25), ("gpipe", 16.0, 0.25), ("zb-v", 8.0, 0.1), ("v-min", 4.0, 0.3)]
    svg = frontier_svg(Frontier("a sweep", "period", [FrontierPoint(8, 0.2, 0.2, True)], marks))
    assert [f">{name}</text>" in svg for name, *_ in marks] == [False, False, True, True]
    twice = [("zb-v", 8.0, 0.1), ("again", 8.0, 0.1)]
    assert len(Frontier("a sweep", "period", [], twice).shown) == 2
    own = Frontier("a sweep", "period", [], marks, elsewhere={"zb-v", "v-min"})
    assert [name for name, *_ in own.shown] == ["1f1b", "zb-v", "v-min"]


def test_labels_come_where_the_value_changes_and_meet_nothing() -> None:
    rates = [(6, 0.2), (8, 0.1), (8.05, 0.1), (8.1, 0.099), (8.2, 0.098), (9, 0.01), (16, 0.01)]
    svg = picture(*(FrontierPoint(x, rate, rate, True) for x, rate in rates))
    text = r'<text x="([\d.]+)" y="([\d.]+)" fill="#2f6cb3"[^>]*>([^<]*)<'
    labels = [(float(x), float(y), words) for x, y, words in re.findall(text, svg)]
    texts = [words for *_, words in labels]
    assert texts.count("10.00 %") == texts.count("1.00 %") == texts.count("20.00 %") == 1
    for (x, y, _), (other, below, _) in combinations(labels, 2):
        assert abs(x - other) > 40 or abs(y - below) >= 12
    for x, y in re.findall(r'<circle [^>]*cx="([\d.]+)" cy="([\d.]+)" r="5"', svg):
        for middle, base, _ in labels:
            assert abs(float(x) - middle) > 20 or abs(float(y) - (base - 4)) > 10
