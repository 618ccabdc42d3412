"""Cases that are planned, and what is held against each plan."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeloom.compiler import compile_schedule
from pipeloom.ir.errors import InfeasibleError
from pipeloom.ir.formats import dump_program, dump_schedule
from pipeloom.ir.verify.program import verify_program
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.planner.configurations.evaluation import fullest
from pipeloom.planner.plan import Plan, plan
from pipeloom.planner.prediction.measured_rows import MeasuredRow
from pipeloom.planner.prediction.step import StepTimes

from ..markdown import markdown

VTRAIN = "vtrain"
WITHIN = 0.05
"""How far a plan may be from its bound."""
_BATCHES = {8: 64, 64: 256, 256: 1024, 1024: 2048}
_MODELS = {"llama-3-8b": 8192, "llama-3-70b": 8192, "llama-3-405b": 8192, "mixtral-8x7b": 4096}
GRID = {
    f"{model} H100 {gpus}": {"gpus": gpus, "global_batch": batch, "seq": seq}
    for model, seq in _MODELS.items()
    for gpus, batch in _BATCHES.items()
}
_ALIKE = ("layers", "gpus", "global_batch", "seq", "precision", "attention", "gradients")
_FLAGS = ("fused_cross_entropy", "compile")


def published_cases(rows: Iterable[MeasuredRow]) -> dict[str, list[MeasuredRow]]:
    """Rows of large runs by what is not chosen; the name says what differs."""
    found: dict[str, list[MeasuredRow]] = {}
    for row in rows:
        if row.source != VTRAIN:
            run = row.setup.run
            words = [row.model, row.setup.cluster.gpu.name, *(str(getattr(run, k)) for k in _ALIKE)]
            words += [key for key in _FLAGS if getattr(run, key)]
            words += ["no sequence parallelism"] * (run.tp > 1 and not run.sequence_parallel)
            found.setdefault(" ".join(words), []).append(row)
    return found


def of_published(name: str, rows: Sequence[MeasuredRow], work: float) -> dict[str, Any]:
    """The plan of a case, and the published configurations by the same model."""
    setup = rows[0].setup
    run = setup.run
    given: dict[str, Any] = {key: getattr(run, key) for key in (*_ALIKE, *_FLAGS)}
    if not all(row.setup.run.sequence_parallel for row in rows if row.setup.run.tp > 1):
        given["sequence_parallel"] = False
    found, result = _plan(name, setup.model, setup.cluster, given, work)
    published = []
    for row in rows:
        step = StepTimes(row.setup, row.setup.cluster)
        memory = fullest(step)
        fits = memory <= setup.cluster.gpu.memory_gib
        published.append({"step_ms": step.time, "memory_gib": memory, "fits": fits})
    result["published"] = published
    if found is not None:
        result["in_space"] = [_contains(found, row) for row in rows]
    return result


def of_grid(name: str, given: Mapping[str, Any], work: float) -> dict[str, Any]:
    """The plan of a model on so many H100s."""
    return _plan(name, name.split(maxsplit=1)[0], "H100", given, work)[1]


def _plan(
    name: str, model: Any, cluster: Any, given: Mapping[str, Any], work: float
) -> tuple[Plan | None, dict[str, Any]]:
    cpu = time.process_time()
    try:
        found = plan(model, cluster, work_limit=work, **given)
    except InfeasibleError as error:
        return None, {"name": name, "nothing fits": str(error)}
    spent = {"cpu_seconds": time.process_time() - cpu}
    schedule = found.best.schedule
    return found, {
        "name": name,
        "plan": found.best.name,
        "schedule": found.best.found.schedule,
        "step_ms": found.best.step_ms,
        "lower_bound": found.lower_bound,
        "gap": found.gap,
        "memory_gib": found.best.prediction.memory_gib,
        "valid": not verify_schedule(dump_schedule(schedule))
        and not verify_program(dump_program(compile_schedule(schedule))),
        **spent,
    }


def _contains(found: Plan, row: MeasuredRow) -> bool:
    """Whether the row's degrees, microbatch and level are among those of the space."""
    run = row.setup.run
    keys = ("tp", "pp", "cp", "dp", "ep", "micro_batch", "recompute")
    return any(
        all(getattr(each, key) == getattr(run, key) for key in keys)
        for each in found.space.degrees()
    )


def missed(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each plan that falls short."""
    lines = []
    for each in found:
        if "plan" not in each:
            continue
        best = min((p["step_ms"] for p in each.get("published", [])), default=float("inf"))
        if best < each["step_ms"] * (1 - 1e-9):
            lines.append(f"missed: {each['name']}: published {best:.1f} ms, {each['step_ms']:.1f}")
        if each["gap"] > WITHIN:
            lines.append(f"missed: {each['name']}: gap {each['gap'] * 100:.1f} %")
        if not each["valid"]:
            lines.append(f"missed: {each['name']}: the schedule or its program is not valid")
    return lines


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """Markdown, one line a case."""
    head = ["case", "plan", "schedule", "step ms", "gap", "published / plan", "GiB"]
    lines = []
    for each in found:
        if "plan" not in each:
            lines.append([each["name"], "nothing fits", *[""] * 5])
            continue
        ratios = [p["step_ms"] / each["step_ms"] for p in each.get("published", [])]
        shown = ", ".join(f"{ratio:.3f}" for ratio in ratios)
        figures = [f"{each['step_ms']:.1f}", f"{each['gap'] * 100:.2f} %", shown]
        names = [each[key] for key in ("name", "plan", "schedule")]
        lines.append([*names, *figures, f"{each['memory_gib']:.1f}"])
    return "\n".join(markdown(head, lines, left=3))
