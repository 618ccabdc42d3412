"""Tables from each rank's times, and the targets that they meet."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ..markdown import markdown
from .both import Case, Span

Row = dict[str, Any]
RUNTIMES = ("ours", "torch", "bare")
AT_MOST = {5.0: 1.03, 20.0: 1.01}  # of ideal, by the stages' milliseconds
QUARTER = 0.25
ABOVE_LOOP = {5.0: 0.01, 20.0: 0.005}  # of ideal, of stages as graphs
FIFTH = 0.2
SPLIT_AT_MOST = {128: 1.15, 512: 1.05}


def summary(cases: Sequence[Case], spans: Mapping[int, list[dict[str, list[Span]]]]) -> list[Row]:
    """A row a case: the median step of each runtime, from the first rank's start to the last's end.

    The processes share one machine's clock.
    """
    rows = []
    for at, case in enumerate(cases):
        ranks = [row[at] for row in spans.values()]
        rows.append(
            {
                "family": case.family,
                "microbatches": case.microbatches,
                "stage_ms": case.milliseconds,
                "ops_a_rank": case.ops_a_rank,
                "steps": len(ranks[0]["ours"]),
                "ideal_ms": case.ideal,
                **{f"{name}_ms": median_step([rank[name] for rank in ranks]) for name in ranks[0]},
            }
        )
    return rows


def median_step(ranks: list[list[Span]]) -> float:
    """The median step of all ranks, from the first one's start to the last one's end, in
    milliseconds."""
    steps = zip(*ranks, strict=True)
    taken: list[float] = [
        max(end for _, end in step) - min(begin for begin, _ in step) for step in steps
    ]
    return 1e3 * statistics.median(taken)


def render_steps(rows: Sequence[Row]) -> str:
    head = ["stage", "schedule", "M", "ideal", *RUNTIMES, *(f"{name} / ideal" for name in RUNTIMES)]
    return _table(head, [_cells(row) for row in rows])


def _cells(row: Row) -> list[str]:
    ideal, taken = row["ideal_ms"], [row[f"{name}_ms"] for name in RUNTIMES]
    cells = [f"{row['stage_ms']:g} ms", row["family"], str(row["microbatches"])]
    if ideal:
        ratios = [f"{ms / ideal:.3f}" for ms in taken]
        return [*cells, *(f"{ms:.1f} ms" for ms in (ideal, *taken)), *ratios]
    an_op = [f"{ms / row['ops_a_rank']:.3f} ms an op" for ms in taken]
    return [*cells, "-", *an_op, *(f"{ms / row['torch_ms']:.2f} of torch's" for ms in taken)]


def loops(found: Mapping[float, Mapping[int, float]]) -> list[Row]:
    """A row for each length of stages: the ranks' median F, B and W in a loop of plain torch."""
    return [
        {"stage_ms": ms, "ideal_ms": 3 * ms, "loop_ms": statistics.median(ranks.values())}
        for ms, ranks in found.items()
    ]


def render_loops(rows: Sequence[Row]) -> str:
    return _table(
        ["stage", "ideal F + B + W", "in a loop of plain torch", "loop / ideal"],
        [
            [
                f"{row['stage_ms']:g} ms",
                *(f"{row[key]:.2f} ms" for key in ("ideal_ms", "loop_ms")),
                f"{row['loop_ms'] / row['ideal_ms']:.3f}",
            ]
            for row in rows
        ],
    )


def render_split(rows: Sequence[Row]) -> str:
    head = ["d", "runtime", "BW", "B", "W", "(B + W) / BW", "held before B", "B to W", "forwards"]
    return _table(
        head,
        [
            [
                str(row["width"]),
                row["runtime"],
                *(f"{row[key]:.1f} ms" for key in ("bw_ms", "b_ms", "w_ms")),
                f"{row['ratio']:.3f}",
                *(f"{row[key] / 1e6:.2f} MB" for key in ("before_b", "between")),
                f"+{row['extra_forwards']:g}",
            ]
            for row in rows
        ],
    )


def _table(head: list[str], rows: list[list[str]]) -> str:
    return "".join(f"{line}\n" for line in markdown(head, rows))


def judged(steps: Sequence[Row]) -> dict[str, bool]:
    """Each target of steps, and whether every row meets it."""
    sleeping = [row for row in steps if row["stage_ms"]]
    targets = {
        f"{ms:g} ms stages: at most {bound} of ideal": all(
            row["ours_ms"] <= bound * row["ideal_ms"] for row in sleeping if row["stage_ms"] == ms
        )
        for ms, bound in AT_MOST.items()
        if any(row["stage_ms"] == ms for row in steps)
    }
    return {**targets, **_against_torch(steps, QUARTER)}


def judged_graphs(steps: Sequence[Row], plain: Sequence[Row]) -> dict[str, bool]:
    """The same of stages as graphs, which are measured by the ``plain`` loop's rows."""
    loop = {row["stage_ms"]: row["loop_ms"] / row["ideal_ms"] for row in plain}
    bounds = {ms: loop[ms] + more for ms, more in ABOVE_LOOP.items() if ms in loop}
    targets = {
        f"{ms:g} ms stages: at most {bound:.3f} of ideal, the plain loop's + {ABOVE_LOOP[ms]}": all(
            row["ours_ms"] <= bound * row["ideal_ms"] for row in steps if row["stage_ms"] == ms
        )
        for ms, bound in bounds.items()
    }
    return {**targets, **_against_torch(steps, FIFTH)}


def _against_torch(steps: Sequence[Row], part: float) -> dict[str, bool]:
    sleeping = [row for row in steps if row["stage_ms"]]
    others = [row for row in steps if not row["stage_ms"]]
    targets: dict[str, bool] = {}
    if sleeping:
        targets["below torch's in every case"] = all(
            row["ours_ms"] < row["torch_ms"] for row in sleeping
        )
    if others:
        targets[f"without compute at most {part} of torch's"] = all(
            row["ours_ms"] <= part * row["torch_ms"] for row in others
        )
    return targets


def judged_split(split: Sequence[Row]) -> dict[str, bool]:
    """Each target of B and W apart."""
    targets: dict[str, bool] = {}
    ours = [row for row in split if row["runtime"] == "ours"]
    for width, bound in SPLIT_AT_MOST.items():
        targets[f"d = {width}: (B + W) / BW at most {bound}"] = all(
            row["ratio"] <= bound for row in ours if row["width"] == width
        )
    targets["between B and W no more memory than before B"] = all(
        row["between"] <= row["before_b"] for row in ours
    )
    targets["one extra forward of each checkpointed block"] = all(
        row["extra_forwards"] == 1 for row in ours
    )
    return targets
