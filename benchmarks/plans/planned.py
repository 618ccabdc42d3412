"""Plans of ``pipeloom.plan``, and published configurations whose step times are predicted by the
same model."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pipeloom import InfeasibleError, compile_schedule, dump_program, plan, verify_program
from pipeloom.planner import MeasuredRow, read_rows
from pipeloom.planner.prediction.rates import Rates
from pipeloom.planner.prediction.step import PredictedStep

from .. import Case, Claim, Column, Row, Rows, Size, Table, of_part, plain, violations

GRID_PART, PUBLISHED_PART = "grid", "published configurations"
MEASURED = Path(__file__).parents[1] / "predict" / "published.json"
WORK = (100.0, 400.0, 1600.0)
"""Work limits of a plan, in millions of simulated ops: each is tried if a target is missed with the
one before."""
VTRAIN = "vtrain"
WITHIN, SAME = 0.05, 1 - 1e-9
"""The largest gap allowed between a plan and its lower bound; and the ratio of two step times from
which on the first counts as no shorter than the second."""
_BATCHES = {8: 64, 64: 256, 256: 1024, 1024: 2048}
_MODELS = {"llama-3-8b": 8192, "llama-3-70b": 8192, "llama-3-405b": 8192, "mixtral-8x7b": 4096}
GRID = {
    f"{model} H100 {gpus}": {"gpus": gpus, "global_batch": batch, "seq": seq}
    for model, seq in _MODELS.items()
    for gpus, batch in _BATCHES.items()
}
_ALIKE = ("layers", "gpus", "global_batch", "seq", "precision", "attention", "gradients")
_FLAGS = ("fused_cross_entropy", "compile")


def cases(size: Size) -> Iterator[Case]:
    for name in list(GRID)[: 1 if size == "small" else None]:
        yield Case(GRID_PART, name)
    if size != "small":
        for name in _published():
            yield Case(PUBLISHED_PART, name)


def measure(case: Case) -> Row:
    """Plan with the smallest work limit with which no target is missed, or with the largest one if
    a target is missed with every limit."""
    for work in WORK:
        if case.part == GRID_PART:
            found = _plan(case.name.split(maxsplit=1)[0], "H100", GRID[case.name], work)
        else:
            found = of_published(_published()[case.name], work)
        if not missed(found):
            break
    return found | {"work": work}


@cache
def _published() -> dict[str, list[MeasuredRow]]:
    """The rows of large runs, grouped by those settings that a plan does not choose.

    Each key is a text with the settings of a group.
    """
    found: dict[str, list[MeasuredRow]] = {}
    for row in read_rows(MEASURED):
        if row.source != VTRAIN:
            run = row.setup.run
            words = [row.model, row.cluster.gpu.name, *(str(getattr(run, k)) for k in _ALIKE)]
            words += [key for key in _FLAGS if getattr(run, key)]
            words += ["no sequence parallelism"] * (run.tp > 1 and not run.sequence_parallel)
            found.setdefault(" ".join(words), []).append(row)
    return found


def of_published(rows: Sequence[MeasuredRow], work: float) -> Row:
    """The figures of the plan for a published case, and the predicted step times of its published
    configurations, ``rows``."""
    setup = rows[0].setup
    given: dict[str, Any] = {key: getattr(setup.run, key) for key in (*_ALIKE, *_FLAGS)}
    if not all(row.setup.run.sequence_parallel for row in rows if row.setup.run.tp > 1):
        given["sequence_parallel"] = False
    steps = [PredictedStep(row.setup, Rates(row.cluster)).time for row in rows]
    published = {"published": [{"step_ms": step} for step in steps]}
    return _plan(setup.model, rows[0].cluster, given, work) | published


def _plan(model: Any, cluster: Any, given: Mapping[str, Any], work: float) -> Row:
    cpu = time.process_time()
    try:
        found = plan(model, cluster, work_limit=work, **given)
    except InfeasibleError as error:
        return {"nothing fits": str(error)}
    spent, schedule = time.process_time() - cpu, found.best.schedule
    wrong = verify_program(dump_program(compile_schedule(schedule)))
    return {
        "plan": found.best.name,
        "schedule": found.best.found.schedule,
        "step_ms": found.best.step_ms,
        "lower_bound": found.lower_bound,
        "gap": found.gap,
        "memory_gib": found.best.memory_gib,
        "valid": not violations(schedule) and not wrong,
        "cpu_seconds": spent,
    }


def missed(row: Mapping[str, Any]) -> bool:
    """Whether a plan misses a target: a published configuration is better, the gap is wider than
    ``WITHIN``, or the schedule or its program is not valid."""
    if "plan" not in row:
        return False
    return min(_ratios(row), default=1.0) < SAME or row["gap"] > WITHIN or not row["valid"]


def _ratios(row: Mapping[str, Any]) -> list[float]:
    """The predicted step times of the published configurations, each divided by that of the
    plan."""
    return [each["step_ms"] / row["step_ms"] for each in row.get("published", [])]


def judge(rows: Rows) -> Iterator[Claim]:
    for part, what in ((GRID_PART, "of Llama-3 8B, 70B, 405B and Mixtral on 8 to 1,024 H100s"),
                       (PUBLISHED_PART, "for published cases of large runs")):  # fmt: skip
        planned = [row for row in of_part(rows, part) if "plan" in row]
        if planned:
            words = f"{len(planned)} plans {what} have gaps of at most "
            words += f"{max(r['gap'] for r in planned):.1%} to the lower bound for all plans."
            nearest = [min(ratios) for row in planned if (ratios := _ratios(row))]
            if nearest:
                slower, worst = sum(each >= SAME for each in nearest), min(nearest)
                words += f" In {slower} of {len(nearest)} cases, no published configuration is "
                words += f"predicted to be faster; the nearest takes {worst:.3f} times as long."
            yield Claim(part, words, not any(map(missed, planned)), part.split()[0] + "-plans")


_TABLE = Table(
    *plain("case"),
    Column("plan", lambda row: row.get("plan", "nothing fits")),
    *plain("schedule"),
    *plain({"step ms": "step_ms"}, ".1f"),
    *plain("gap", ".2%"),
    Column(
        "published / plan", lambda row: ", ".join(f"{each:.3f}" for each in _ratios(row)) or None
    ),
    *plain({"GiB": "memory_gib"}, ".1f"),
)
columns = {GRID_PART: _TABLE, PUBLISHED_PART: _TABLE}
