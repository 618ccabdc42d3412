"""``plan --scale``: the best plan for each of several numbers of GPUs, and what its step time is
spent on."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pipeloom.ir.errors import InfeasibleError, InputError
from pipeloom.ir.formats import write_json
from pipeloom.ir.units import counted
from pipeloom.report.text_table import Cell, table
from pipeloom.solver.core.stopping import NEVER, StoppingCriterion

from ..clusters.cluster import cluster_of
from ..folders import made
from ..inputs.words import check_whole
from ..models.reading import read_model
from ..requests.plans import PlanRequest
from ..solving.progress import Note, unheard
from ..solving.workers import Workers, in_order, stop_asked
from .plans import PARTS, best_plan
from .space import Space


@dataclass(frozen=True)
class ScalePoint:
    """The best plan on ``gpus`` GPUs, or the reason why there is none.

    ``plan``: the JSON object of the plan, as ``plan --json`` lists it; None if there is no plan.
    ``why_not``: the reason why there is no plan; None if there is one.
    """

    gpus: int
    global_batch: int
    plan: dict[str, Any] | None = None
    why_not: str | None = None

    @property
    def tokens(self) -> float:
        """Tokens per second on each GPU; 0 if there is no plan."""
        return float(self.plan["tokens_per_s_per_gpu"]) if self.plan else 0.0

    @property
    def parts(self) -> dict[str, float]:
        """The parts of the step time, in milliseconds, by name (:data:`.plans.PARTS`); an empty
        dict if there is no plan."""
        return self.plan["parts_ms"] if self.plan else {}


@dataclass(frozen=True)
class Scaling:
    """The result of a scaling study: the best plans on several numbers of GPUs.

    ``points``: one per number of GPUs, in ascending order.
    """

    model: str
    cluster: str
    points: tuple[ScalePoint, ...]

    @property
    def planned(self) -> list[ScalePoint]:
        """The points that have a plan."""
        return [point for point in self.points if point.plan is not None]

    def efficiency(self, point: ScalePoint) -> float | None:
        """Return the tokens per second and GPU of ``point``, divided by those of the planned point
        with the fewest GPUs. None if ``point`` has no plan."""
        return point.tokens / self.planned[0].tokens if point.plan else None

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``plan --scale --json`` prints."""
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
        return {"model": self.model, "cluster": self.cluster, "points": rows}

    def write(self, folder: str | os.PathLike[str]) -> tuple[str, ...]:
        """Write ``scaling.json`` into ``folder``.

        Raises InputError if that fails. Returns an empty tuple, because :meth:`.plans.Plan.write`
        returns a tuple of notes.
        """
        path = made(folder)
        write_json(self.to_dict(), str(path / "scaling.json"))
        return ()

    def __str__(self) -> str:
        found = {kind for point in self.planned for kind, part in point.parts.items() if part > 0}
        kinds = [kind for kind in PARTS if kind in found]
        header = ["GPUs", "batch", "plan", "step", "tokens/s/GPU", "of first", "MFU", *kinds]
        return "\n".join(
            [
                f"{self.model} on {self.cluster}: the best plans, and the share of their steps by "
                "what it goes to",
                table(header, [self._row(point, kinds) for point in self.points]),
                *(f"{p.gpus} GPUs: {p.why_not}" for p in self.points if p.plan is None),
            ]
        )

    def _row(self, point: ScalePoint, kinds: list[str]) -> list[Cell]:
        head, plan = [str(point.gpus), str(point.global_batch)], point.plan
        if plan is None:
            return [*head, *["-"] * (5 + len(kinds))]
        total = sum(point.parts.values())
        shares = [self.efficiency(point) or 0.0, plan["mfu"]]
        shares += [point.parts.get(kind, 0.0) / total for kind in kinds]
        step = [f"{plan['name']}, {plan['schedule']}", plan["step_ms"], f"{point.tokens:.5g}"]
        return [*head, *step, *(f"{share * 100:.1f} %" for share in shares)]


def scaled(request: PlanRequest) -> Scaling:
    """Return the best plan for each number of GPUs in ``request.scale``.

    If the caller stops the search, the numbers of GPUs without a result are left out. Raises
    InputError for invalid input, and InfeasibleError if none of the numbers of GPUs has a plan.
    """
    if request.gpus is not None:
        raise InputError("gpus: expected none with scale, which has several")
    if request.global_batch is None:
        raise InputError("global_batch: missing; expected a whole number >= 1")
    known, where = read_model(request.model), cluster_of(request.cluster, request.gpu)
    one = replace(request, model=known, cluster=where, gpu=None, progress=None, should_stop=None)
    jobs = [
        replace(one, gpus=number, global_batch=batch, workers=None, scheduler=None)
        for number, batch in _batches(request.scale, request.global_batch).items()
    ]
    Space.of(jobs[0], known, where)
    tell, stop = request.progress or unheard, request.should_stop or NEVER
    with Workers(request.workers or 1, request.scheduler, len(jobs)) as workers:
        solve = _point if workers.is_parallel(len(jobs)) else partial(_point, should_stop=stop)
        found = workers.run(solve, jobs, tell=tell, should_stop=stop)
        points = tuple(point for _, point in in_order(found))
    if len(points) < len(jobs):
        tell(Note(f"interrupted: {counted(len(jobs) - len(points), 'number of GPUs')} left out"))
    scaling = Scaling(known.name, where.name, points)
    if points and not scaling.planned:
        raise InfeasibleError("\n".join(dict.fromkeys(p.why_not or "" for p in points)))
    return scaling


def _batches(gpus: Iterable[int], batch: int) -> dict[int, int]:
    """Return the global batch for each number of GPUs, in ascending order of GPUs. It grows with
    the number of GPUs.

    ``batch``: the global batch on the smallest number of GPUs. Raises InputError if a number of
    GPUs is invalid, or if a batch would not be a whole number.
    """
    numbers = sorted(set(gpus))
    for number in numbers:
        check_whole("scale", number, 1)
    odd = next((n for n in numbers if batch * n % numbers[0]), None)
    if odd is not None:
        raise InputError(
            f"global_batch: expected one that grows with the GPUs, got {batch} on {numbers[0]}, "
            f"which is {batch * odd / numbers[0]:g} on {odd}"
        )
    return {number: batch * number // numbers[0] for number in numbers}


def _point(job: PlanRequest, should_stop: StoppingCriterion = stop_asked) -> ScalePoint:
    """Return the best plan for the number of GPUs of ``job``, or the reason why there is none.

    ``should_stop``: asked during the search whether to stop it.
    """
    gpus, batch = job.gpus or 0, job.global_batch or 0
    try:
        found = best_plan(replace(job, should_stop=should_stop)).best
    except (InfeasibleError, InputError) as error:  # this number of GPUs has no plan
        return ScalePoint(gpus, batch, why_not=str(error))
    return ScalePoint(gpus, batch, found.to_dict())
