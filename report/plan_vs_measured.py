"""``show --measured``: the time of a run beyond its plan, as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pipeloom.ir.units import memory_size

from .text_table import table

if TYPE_CHECKING:
    from .attribution import Attribution, OpLoss

SHOWN = 5  # most ops that the text names
LEAST = 5e-4
"""Milliseconds below which a difference is not shown."""
CAUSES = {
    "slower": "what ops took beyond the profile, each kind and stage in its median",
    "uneven": "what ops took beyond their own median: contention, clocks",
    "receive": "inputs that came later than planned",
    "host": "idle though all inputs were there",
    "start": "the chain's first op began late",
}


def text(found: Attribution) -> str:
    """Three tables: the causes of the difference, the ranks, and the ops with most losses."""
    beyond = found.measured - found.planned
    parts = [(name, getattr(found.causes, name), words) for name, words in CAUSES.items()]
    parts.append(("slack", -found.slack, "the plan had a longer chain than this one"))
    rows = [[name, _signed(ms), words] for name, ms, words in parts if abs(ms) >= LEAST]
    percent = round(beyond / found.planned * 100, 1) if found.planned > 0 else None
    share = "" if percent is None else f" ({percent + 0.0:+.1f} %)"  # + 0.0 turns -0.0 into 0.0
    head = (
        f"makespan {found.planned:.5g} ms planned, {found.measured:.5g} ms measured, "
        f"{_signed(beyond)} ms{share}, along the chain of ops that ended last:"
    )
    parts_shown = [head, table(["cause", "ms", ""], rows), _ranks(found), *_ops(found.chain)]
    expected = [] if found.expected is None else [f"expected: {found.expected}"]
    return "\n\n".join([*parts_shown, *expected])


def _ranks(found: Attribution) -> str:

    rows = [
        [
            str(row.rank),
            *(
                f"{ms:.5g}"
                for ms in (row.planned_compute, row.compute, row.waiting, row.receive, row.host)
            ),
            memory_size(row.planned_peak),
            memory_size(row.peak),
            "",
        ]
        for row in found.ranks
    ]
    header = ["rank", "planned compute", "compute", "waiting", "receive", "host"]
    return table([*header, "planned peak", "peak", ""], rows)


def _ops(chain: tuple[OpLoss, ...]) -> list[str]:
    most = sorted(chain, key=lambda loss: loss.causes.total, reverse=True)[:SHOWN]
    rows = [
        [
            str(loss.rank),
            str(loss.op),
            f"{loss.planned:.5g}",
            f"{loss.measured:.5g}",
            f"{loss.gap:.5g}",
            _signed(loss.causes.total),
            max(CAUSES, key=lambda name: float(getattr(loss.causes, name))),
        ]
        for loss in most
        if loss.causes.total >= LEAST
    ]
    header = ["rank", "op", "planned", "measured", "idle before", "beyond", "mostly"]
    return [table(header, rows)] if rows else []


def as_json(found: Attribution) -> dict[str, Any]:
    """The whole attribution as a JSON object, with ops as text."""
    answer = asdict(found)
    for loss, row in zip(found.chain, answer["chain"], strict=True):
        row["op"] = str(loss.op)
    return answer


def _signed(milliseconds: float) -> str:
    if abs(milliseconds) < LEAST:
        return "+0.000"
    return f"{milliseconds:+.3f}" if abs(milliseconds) < 10 else f"{milliseconds:+.1f}"
