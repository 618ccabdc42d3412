"""Pictures of one small schedule whose every time is plain to see.

Two ranks, T_F = T_B = T_W = 1, no delay, two microbatches, B and W split::

    rank 0 | F0 F1 .  B0 W0 B1 W1
    rank 1 |    F0 B0 F1 B1 W0 W1
"""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from pipeloom.ir.ops import parse_order
from pipeloom.ir.problem import Problem
from pipeloom.ir.profile import Profile, StageProfile
from pipeloom.ir.schedule import Schedule, Timing
from pipeloom.report import summary, timeline_html, timeline_svg, timeline_text, trace_events

SVG = "{http://www.w3.org/2000/svg}"


def small(limit: float | None = 2.0) -> Schedule:
    profile = Profile((StageProfile(1, 1, 1, 1.0, 0.5),) * 2, ranks=2, t_comm=0.0, name="small")
    order = ["0F0 0F1 0B0 0W0 0B1 0W1", "1F0 1B0 1F1 1B1 1W0 1W1"]
    return Schedule.of(Problem.linear(profile, 2, limit), map(parse_order, order), "by-hand")


def bars_of(svg: str) -> list[tuple[str, float, float]]:
    """(tooltip, left, width) of every bar."""
    root = ElementTree.fromstring(svg)
    groups = [g for g in root.iter(f"{SVG}g") if g.get("class") == "bars"]
    return [
        (rect.findtext(f"{SVG}title") or "", float(rect.get("x", 0)), float(rect.get("width", 0)))
        for group in groups
        for rect in group
    ]


def test_every_op_is_a_bar_as_long_as_its_time() -> None:
    bars = bars_of(timeline_svg([("planned", small())]))
    assert len(bars) == 12
    widths = {round(width, 1) for _, _, width in bars}
    assert len(widths) == 1
    left = {tip.split(":")[0]: x for tip, x, _ in bars}
    (unit,) = widths
    assert left["0B0"] - left["0F0"] == pytest.approx(3 * unit, abs=0.2)
    assert left["1F0"] - left["0F0"] == pytest.approx(unit, abs=0.2)


def test_panels_share_one_time_scale() -> None:
    slow = small()
    timing = Timing(
        tuple(np.arange(6) * 4.0 + 50.0 for _ in range(2)),
        tuple(np.arange(6) * 4.0 + 52.0 for _ in range(2)),
        (2.0, 2.0),
        np.empty((0, 2)),
    )
    measured = Schedule(slow.problem, slow.order, report=slow.report, timing=timing)
    svg = timeline_svg([("planned", small()), ("measured", measured)])
    assert svg.index("planned") < svg.index("measured")
    bars = bars_of(svg)
    planned, took = bars[0][2], bars[-1][2]
    assert took == pytest.approx(2 * planned, abs=0.2)
    # measured times need not begin at 0: the panel does
    assert min(x for _, x, _ in bars[:12]) == pytest.approx(min(x for _, x, _ in bars[12:]))


def test_the_picture_names_its_figures() -> None:
    svg = timeline_svg([("planned", small())])
    assert "small: by-hand, 2 ranks, 2 stages, 2 microbatches" in svg
    assert summary(small()) in svg
    assert "forward" in svg
    assert "both gradients" not in svg


def test_names_are_escaped() -> None:
    schedule = small()
    svg = timeline_svg([("<b>&", schedule)], title='a<b & "c"')
    ElementTree.fromstring(svg)
    assert "&lt;b&gt;&amp;" in svg


def test_the_page_holds_the_picture() -> None:
    page = timeline_html([("planned", small())])
    assert timeline_svg([("planned", small())]) in page
    assert page.startswith("<!doctype html>")


def test_summary_counts_the_bubble_of_the_objective() -> None:
    # 12 units of work on 2 ranks that span 7 and 6: 1 - 12 / 14
    assert summary(small()) == (
        "bubble 14.29 % of the period, period 7 ms, makespan 7 ms, peak memory 2 of 2"
    )
    assert summary(small(None)).endswith("peak memory 2")


def test_the_terminal_reads_without_colour() -> None:
    text = timeline_text(small(), columns=9 + 7 * 3)
    rows = [line for line in text.splitlines() if line.startswith("rank")]
    assert rows == [
        "rank 0 │F0─F1─···B0═W0┄B1═W1┄│",
        "rank 1 │   F0─B0═F1─B1═W0┄W1┄│",
    ]
    assert "\x1b" not in text


def test_the_terminal_fits_any_width() -> None:
    for columns in (20, 33, 80, 200):
        rows = timeline_text(small(), columns=columns).splitlines()[1:3]
        assert {len(row) for row in rows} == {columns}


def test_narrow_columns_keep_the_kind() -> None:
    rows = timeline_text(small(), columns=9 + 10).splitlines()[1:3]
    letters = re.sub(r"[^FBW]", "", rows[0])
    assert letters == "FFBWBW"


def test_colours_wrap_the_same_text() -> None:
    painted = timeline_text(small(), columns=60, colours=True)
    assert re.sub(r"\x1b\[[0-9;]*m", "", painted) == timeline_text(small(), columns=60)
    assert painted != timeline_text(small(), columns=60)


def test_trace_events_are_microseconds_and_count_memory() -> None:
    trace = json.loads(json.dumps(trace_events(small())))
    ops = {e["name"]: e for e in trace["traceEvents"] if e["ph"] == "X"}
    assert len(ops) == 12
    assert (ops["0B0"]["ts"], ops["0B0"]["dur"], ops["0B0"]["tid"]) == (3000.0, 1000.0, 0)
    held = [
        e["args"]["held"]
        for e in trace["traceEvents"]
        if e["ph"] == "C" and e["name"] == "memory of rank 0"
    ]
    assert held == [1.0, 2.0, 1.5, 1.0, 0.5, 0.0]
