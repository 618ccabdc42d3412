"""Pictures of a small schedule whose times are easy to compute.

Two ranks, T_F = T_B = T_W = 1, no delay, two microbatches, separate B and W::

    rank 0 | F0 F1 .  B0 W0 B1 W1
    rank 1 |    F0 B0 F1 B1 W0 W1
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from pipeloom import Objective, Profile, Schedule, StageProfile, show
from pipeloom.ir import Link, Timing
from pipeloom.report import timeline_svg, trace_events
from tests.support.by_hand import by_hand

SVG = "{http://www.w3.org/2000/svg}"


def small(limit: float | None = 2.0) -> Schedule:
    profile = Profile((StageProfile(1, 1, 1, 1.0, 0.5),) * 2, ranks=2, t_comm=0.0, name="small")
    order = ["0F0 0F1 0B0 0W0 0B1 0W1", "1F0 1B0 1F1 1B1 1W0 1W1"]
    return by_hand(*order, profile=profile, limit=limit)


def paired() -> Schedule:
    """T_FB = 2 with T_F = T_B = T_W = 1::

    0 | F0 F1&BW0 BW1
    """
    profile = Profile((StageProfile(1, 1, 1, 1.0, 0.5, t_fb=2),), ranks=1, name="pair")
    return replace(by_hand("0F0 0F1 0BW0 0BW1", profile=profile), pairs=((1,),))


def offloaded() -> Schedule:
    """A copy takes half a unit in each direction; F1 waits for the first::

    rank 0 | F0F0  F1F1B1B1W1W1B0B0W0W0
      host |     O0    L0
    """
    stage = StageProfile(1, 1, 1, 1.0, 0.5, m_o=0.0, offload_bytes=5e5)
    profile = Profile((stage,), ranks=1, name="out", host_link=Link(0.0, 1.0))
    return by_hand("0F0 0O0 0F1 0L0 0B1 0W1 0B0 0W0", profile=profile)


def bars_of(svg: str) -> list[tuple[str, float, float]]:
    """(op, left, width) of every bar."""
    groups = ElementTree.fromstring(svg).iter(f"{SVG}g")
    return [
        (op_of(rect), float(rect.get("x", 0)), float(rect.get("width", 0)))
        for group in groups
        for rect in group
        if group.get("class") == "bars"
    ]


def op_of(rect: ElementTree.Element) -> str:
    return (rect.findtext(f"{SVG}title") or "").partition(":")[0]


def rows_of(*schedules: Schedule, columns: int, memory: bool = False) -> list[str]:
    text = str(show(*schedules, columns=columns, memory=memory))
    return [line for line in text.splitlines() if "│" in line]


def test_bars_are_as_long_as_their_times_on_one_scale_for_all_panels() -> None:
    times = tuple(np.arange(6) * 4.0 + 50.0 for _ in range(2))  # of a run, which begins later
    timing = Timing(times, tuple(row + 2.0 for row in times), (2.0, 2.0), np.empty((0, 2)))
    svg = timeline_svg([("planned", small()), ("measured", replace(small(), timing=timing))])
    assert svg.index("planned") < svg.index("measured")
    bars = bars_of(svg)
    assert len(bars) == 24
    unit = bars[0][2]
    assert [width for *_, width in bars] == pytest.approx([unit] * 12 + [2 * unit] * 12, abs=0.2)
    left = {op: x for op, x, _ in bars[:12]}
    assert left["0B0"] - left["0F0"] == pytest.approx(3 * unit, abs=0.2)
    assert left["1F0"] - left["0F0"] == pytest.approx(unit, abs=0.2)
    assert min(left.values()) == pytest.approx(min(x for _, x, _ in bars[12:]))


def test_hatched_is_what_the_bubble_rate_counts() -> None:
    """For the period: 7 from each rank's first op on; for the makespan: 0 to 7 on all ranks."""
    for objective, begin in (Objective.PERIOD, 1), (Objective.MAKESPAN, 0):
        problem = replace(small().problem, objective=objective)
        svg = timeline_svg([(None, replace(small(), problem=problem))])
        rects = ElementTree.fromstring(svg).iter(f"{SVG}rect")
        rows = [r for r in rects if r.get("fill") == "url(#bubble)" and r.get("rx") is None]
        at = np.array([[float(r.get(key, 0)) for key in ("x", "width")] for r in rows])
        at[:, 0] -= at[0, 0]
        expected = np.array([(0, 7), (begin, 7)])
        assert at / bars_of(svg)[0][2] == pytest.approx(expected, abs=0.01)


def test_memory_is_drawn_on_one_scale_with_its_limit() -> None:
    svg = timeline_svg([(None, small()), (None, small(4.0))], memory=True)
    words = [text.text or "" for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    fullest = "memory held in the profile's unit; fullest (dark): rank 0, 2 at 1 ms"
    assert words.count(fullest) == 2
    assert {"limit 2", "limit 4"} < set(words)
    assert words.count("4") >= 2  # the maximum of both scales
    assert "memory held" not in timeline_svg([(None, small())])
    rows = rows_of(small(), small(4.0), columns=9 + 8 * 2, memory=True)
    assert [row for row in rows if "mem" in row] == 2 * [
        "    mem│▂▂▄▄▄▄▄▄▃▃▂▂▁▁  │",
        "    mem│  ▂▂▂▂▃▃▃▃▂▂▁▁  │",
    ]


def test_the_terminal_reads_without_colour_at_any_width() -> None:
    assert rows_of(small(), columns=9 + 8 * 3) == [
        "rank 0 │F0─F1─···B0═W0┄B1═W1┄   │",
        "rank 1 │   F0─B0═F1─B1═W0┄W1┄···│",
    ]
    for columns in (20, 33, 80, 200):
        assert {len(row) for row in rows_of(small(), columns=columns)} == {columns}
    # 12 units of work on 2 ranks that span 7 and 6: 1 - 12 / 14
    summary = "bubble 14.29 % of the period, period 7 ms, makespan 7 ms, peak memory 2"
    assert f"{summary} of 2\n" in str(show(small()))
    assert f"{summary}\n" in str(show(small(None)))
    painted = str(show(paired(), columns=60, colours=True))
    assert re.sub(r"\x1b\[[0-9;]*m", "", painted) == str(show(paired(), columns=60)) != painted


def test_the_terminal_says_that_iterations_overlap() -> None:
    """Without delays, rank 0 spans the period. If stage 1 has a long W, rank 1 begins and ends
    later::

    rank 0 | F0 .  .  B0 W0
    rank 1 |    F0 B0 W0
    """
    order = "0F0 0B0 0W0", "1F0 1B0 1W0"
    assert "iteration" not in str(show(by_hand(*order)))
    late = Profile((StageProfile(1, 1, 0), StageProfile(1, 1, 4)), ranks=2, t_comm=0.0)
    overlapping = by_hand(*order, profile=late)
    assert str(show(overlapping)).splitlines()[-1] == (
        "one of many iterations: a rank starts the next where its row ends, one every 6 ms"
    )
    barrier = replace(overlapping.problem, objective=Objective.MAKESPAN)
    assert "iteration" not in str(show(replace(overlapping, problem=barrier)))


def test_traces_have_microseconds_memory_and_arrows_between_ranks() -> None:
    trace = json.loads(json.dumps(trace_events([("planned", small()), ("measured", small())])))
    events = trace["traceEvents"]
    threads = [(e["pid"], e["args"]["name"]) for e in events if e["name"] == "thread_name"]
    assert sorted(threads) == [(pid, f"rank {rank}") for pid in (0, 1) for rank in (0, 1)]
    ops = {(e["pid"], e["name"]): e for e in events if e["ph"] == "X"}
    assert len(ops) == 24
    assert [ops[0, "0B0"][key] for key in ("ts", "dur", "tid")] == [3000.0, 1000.0, 0]
    held = [e["args"]["held"] for e in events if (e["name"], e["pid"]) == ("memory of rank 0", 0)]
    assert held == [1.0, 2.0, 1.5, 1.0, 0.5, 0.0]
    arrows = [e for e in events if e.get("cat") == "message"]
    assert len({e["id"] for e in arrows}) * 2 == len(arrows) == 2 * 2 * 4  # x and dy, two each
    first, last = (e for e in arrows if e["id"] == "1.message 0F1")
    leaves, needs = ops[1, "0F1"], ops[1, "1F1"]
    assert leaves["ts"] < first["ts"] < leaves["ts"] + leaves["dur"]
    assert (last["ts"], last["tid"], last["bp"]) == (needs["ts"], 1, "e")


def test_a_pair_is_one_cell_with_both_microbatches() -> None:
    assert rows_of(paired(), columns=9 + 5 * 4) == ["rank 0 │F0──P1/0≡≡≡≡BW1━━━━━│"]
    assert rows_of(paired(), columns=9 + 10) == ["rank 0 │F0P1/0BW1━│"]
    words = "P≡≡ a forward and both gradients at once: Pi/j of Fi and BWj"
    assert [words in str(show(each)) for each in (paired(), small())] == [True, False]
    assert "one above the other: at once" in timeline_svg([("p", paired())])


def test_copies_are_in_a_row_of_their_own() -> None:
    assert rows_of(offloaded(), columns=9 + 4 * 13) == [
        "rank 0 │F0──────····F1──────B1══════W1┄┄┄┄┄┄B0══════W0┄┄┄┄┄┄│",
        "   host│        O0→→        L0←←                            │",
    ]
    # short ones are drawn too
    narrow = rows_of(offloaded(), columns=9 + 12)[1]
    assert (narrow.count("O"), narrow.count("L")) == (1, 1)
    root = ElementTree.fromstring(timeline_svg([("p", offloaded())]))
    found = {op_of(rect): rect for rect in root.iter(f"{SVG}rect")}
    out, back, forward = (found[op] for op in ("0O0", "0L0", "0F0"))
    below = float(forward.get("y", 0)) + float(forward.get("height", 0))
    assert below < float(out.get("y", 0)) < float(back.get("y", 0))
    assert float(out.get("width", 0)) == pytest.approx(float(forward.get("width", 0)) / 2, abs=0.2)
