"""``plan --scale``: the best plan for each of several numbers of GPUs, and where its step time
goes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pipeloom.ir.errors import InfeasibleError, InputError
from pipeloom.ir.formats import write_json, write_text
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.units import counted
from pipeloom.report.svg.scaling import ScaleBar, scaling_svg
from pipeloom.report.text_table import Cell, table
from pipeloom.solver.core.stopping import NEVER, StoppingCriterion

from .configurations.reasons import parts_of
from .configurations.space import Space
from .folders import made
from .inputs.words import check_choice, check_whole
from .models.reading import ModelLike, read_model
from .plan import plan
from .predict import ClusterLike, cluster_of
from .prediction.setup import Setup
from .prediction.step import StepTimes
from .requests.search import Limited
from .solving.progress import Listener, Note, unheard
from .solving.workers import Workers, in_order, stop_asked


@dataclass(frozen=True)
class ScalePoint:
    """The best plan on ``gpus`` GPUs, as in ``plan --json``, or the reason why there is none.

    ``parts``: the step time in milliseconds, divided by what it is spent on.
    """

    gpus: int
    global_batch: int
    plan: dict[str, Any] | None = None
    parts: dict[str, float] = field(default_factory=dict)
    why_not: str | None = None

    @property
    def tokens(self) -> float:
        """Tokens per second on each GPU; 0 without a plan."""
        return float(self.plan["tokens_per_s_per_gpu"]) if self.plan else 0.0

    def bar(self) -> ScaleBar:
        """The time per token, divided by what it is spent on, as a bar of the picture."""
        total = sum(self.parts.values())
        shares = {key: 1e6 / self.tokens * part / total for key, part in self.parts.items()}
        return ScaleBar(self.gpus, self.tokens, shares)


@dataclass(frozen=True)
class Scaling:
    """A scaling study: weak (the batch grows with the number of GPUs) or strong (the batch is
    constant)."""

    model: str
    cluster: str
    scaling: str
    points: tuple[ScalePoint, ...]

    @property
    def planned(self) -> list[ScalePoint]:
        """The points that have a plan."""
        return [point for point in self.points if point.plan is not None]

    def efficiency(self, point: ScalePoint) -> float | None:
        """Tokens per second and GPU, relative to the smallest number of GPUs that has a plan."""
        return point.tokens / self.planned[0].tokens if point.plan else None

    def to_dict(self) -> dict[str, Any]:
        """The object that ``plan --scale --json`` prints."""
        rows = [
            {
                "gpus": point.gpus,
                "global_batch": point.global_batch,
                "efficiency": self.efficiency(point),
                "parts_ms": point.parts,
                "plan": point.plan,
                "why_not": point.why_not,
            }
            for point in self.points
        ]
        head = {"model": self.model, "cluster": self.cluster, "scaling": self.scaling}
        return head | {"points": rows}

    def picture(self) -> str:
        """An SVG with one bar per number of GPUs: the time per token, divided by what it is spent
        on."""
        title = f"{self.scaling} scaling of {self.model} on {self.cluster}"
        return scaling_svg(title, [point.bar() for point in self.points])

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Write scaling.json and scaling.svg. Raises InputError if that fails."""
        path = made(folder)
        write_json(self.to_dict(), str(path / "scaling.json"))
        write_text(self.picture(), str(path / "scaling.svg"))

    def __str__(self) -> str:
        kinds = list(dict.fromkeys(key for point in self.planned for key in point.parts))
        kinds = [kind for kind in kinds if any(p.parts.get(kind, 0.0) > 0 for p in self.planned)]
        header = ["GPUs", "batch", "plan", "step", "tokens/s/GPU", "of first", "MFU"]
        rows = [self._row(point, kinds) for point in self.points]
        return "\n".join(
            [
                f"{self.scaling} scaling of {self.model} on {self.cluster}: the best plans, and "
                "the share of their steps by what it goes to",
                table([*header, *kinds], rows),
                *(f"{p.gpus} GPUs: {p.why_not}" for p in self.points if p.plan is None),
            ]
        )

    def _row(self, point: ScalePoint, kinds: list[str]) -> list[Cell]:
        head = [str(point.gpus), str(point.global_batch)]
        if point.plan is None:
            return [*head, *["-"] * (5 + len(kinds))]
        total = sum(point.parts.values())
        return [
            *head,
            f"{point.plan['name']}, {point.plan['schedule']}",
            point.plan["step_ms"],
            f"{point.tokens:.5g}",
            f"{(self.efficiency(point) or 0.0) * 100:.1f} %",
            f"{point.plan['mfu'] * 100:.1f} %",
            *(f"{point.parts.get(kind, 0.0) / total * 100:.1f} %" for kind in kinds),
        ]


def scaling(
    model: ModelLike,
    cluster: ClusterLike | None = None,
    *,
    gpus: Iterable[int],
    global_batch: int,
    scaling: str = "weak",
    time_limit: float | None = None,
    work_limit: float | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    progress: Listener | None = None,
    should_stop: Callable[[], bool] | None = None,
    **run: Any,
) -> Scaling:
    """Find the best plan of ``model`` for each number of ``gpus``, and where its step time goes.

    ``scaling``: ``weak``: ``global_batch`` is for the smallest number of GPUs and grows with them;
    ``strong``: it is the same for all. ``time_limit``: seconds for each number of GPUs, 45 by
    default; ``work_limit``: instead, as in :func:`pipeloom.plan`. ``workers`` and ``scheduler``: as
    in :func:`pipeloom.sweep`; the other arguments are those of :func:`pipeloom.plan`. When
    ``should_stop`` returns true, the remaining numbers are omitted.

    Raises InputError for invalid input, and InfeasibleError if no number of GPUs has a plan.
    """
    check_choice("scaling", scaling, "weak", "strong")
    Limited(time_limit=time_limit, work_limit=work_limit)
    known, where = read_model(model), cluster_of(cluster, run.get("gpu"))
    runs = [
        run | {"gpus": number, "global_batch": batch}
        for number, batch in _batches(gpus, global_batch, scaling).items()
    ]
    Space.of(known, where, runs[0])
    each = {"model": known, "cluster": where, "time_limit": time_limit, "work_limit": work_limit}
    jobs, tell, stop = [run | each for run in runs], progress or unheard, should_stop or NEVER
    spread = Workers(1 if workers is None else workers, scheduler)
    solve = _point if spread.spread(len(jobs)) else partial(_point, should_stop=stop)
    results = spread.run(solve, jobs, tell=tell, should_stop=stop)
    points = tuple(point for _, point in in_order(results))
    if len(points) < len(jobs):
        tell(Note(f"interrupted: {counted(len(jobs) - len(points), 'number of GPUs')} left out"))
    found = Scaling(known.name, where.name, scaling, points)
    if points and not found.planned:
        raise InfeasibleError("\n".join(dict.fromkeys(p.why_not or "" for p in points)))
    return found


def _batches(gpus: Iterable[int], batch: int, scaling: str) -> dict[int, int]:
    """The global batch for each number of GPUs, in ascending order. Raises InputError."""
    numbers = sorted(set(gpus))
    if not numbers:
        raise InputError("scale: expected at least one number of GPUs, got none")
    for number in numbers:
        check_whole("scale", number, 1)
    check_whole("global_batch", batch)
    if scaling == "strong":
        return dict.fromkeys(numbers, batch)
    odd = next((n for n in numbers if batch * n % numbers[0]), None)
    if odd is not None:
        raise InputError(
            f"global_batch: expected one that grows with the GPUs, got {batch} on {numbers[0]}, "
            f"which is {batch * odd / numbers[0]:g} on {odd}"
        )
    return {number: batch * number // numbers[0] for number in numbers}


def _point(job: dict[str, Any], should_stop: StoppingCriterion = stop_asked) -> ScalePoint:
    """The best plan for one number of GPUs; ``job`` holds the arguments of :func:`.plan`."""
    gpus, batch = job["gpus"], job["global_batch"]
    try:
        found = plan(**job, should_stop=should_stop).best
    except (InfeasibleError, InputError) as error:  # for this number of GPUs
        return ScalePoint(gpus, batch, why_not=str(error))
    return ScalePoint(gpus, batch, found.to_dict(), losses_of(found.step))


def losses_of(step: StepTimes) -> dict[str, float]:
    """The step time in milliseconds, divided by what it is spent on.

    The parts are those of :func:`.configurations.reasons.parts_of`, with three more taken out of
    them: ``memory``, recomputation that saves memory; ``uneven``, the busiest rank's excess over
    the average compute time; ``links``, exposed messages between stages.
    """
    parts = parts_of(step)
    run = replace(step.setup.run, recompute=frozenset())
    setup = Setup(step.setup.model, run, step.cluster)
    planned = step.planned if step.passing is Passing.WEIGHTS else None
    plain = StepTimes(setup, step.cluster, passing=step.passing, planned=planned)
    again = max(0.0, parts["compute"] - parts_of(plain)["compute"])
    uneven = float(step.work.max() - step.work.mean())
    sends = step.communication().get("pp")
    links = max(0.0, min(sends.exposed, parts["bubble"])) if sends else 0.0
    compute, bubble = parts.pop("compute"), parts.pop("bubble")
    return {
        "compute": compute - again - uneven,
        "memory": again,
        "uneven": uneven,
        "bubble": bubble - links,
        "links": links,
    } | parts
