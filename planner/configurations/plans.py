"""The result of ``plan``: the best configurations of a model on a number of GPUs, with a lower
bound on all configurations."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from math import inf
from typing import Any

from pipeloom.ir.errors import InfeasibleError
from pipeloom.ir.formats import write_json
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.units import duration
from pipeloom.report.summaries import from_optimal
from pipeloom.report.text_table import Cell, table

from ..clusters.cluster import cluster_of
from ..folders import made
from ..models.reading import read_model
from ..predict import NUMBERS, Prediction, cautions
from ..requests.plans import PlanRequest
from ..solving.progress import Note, unheard
from ..solving.workers import Workers
from .choose import Ranking, SpaceSearch
from .evaluation import Evaluated, certified, step_of
from .files import write_files
from .space import Space

TIME_LIMIT = 45.0
"""Default time limit, in seconds."""
WIDTH = 100
"""Width, in characters, to which the explanations below the table are wrapped."""
SHOWN = 8
"""Maximum number of plans in the table."""
UNSURE = 0.01
"""Relative error of predicted memory, as a share of a device's memory (docs/predict.md)."""
PARTS = (
    *("compute", "memory", "uneven", "tp", "cp", "ep", "etp"),
    *("bubble", "links", "dp", "step"),
)
"""Names of the parts of a step time; :attr:`..prediction.step.PredictedStep.parts` describes
them."""

RUN_KEYS = (
    *("gpus", "tp", "pp", "vp", "dp", "cp", "ep", "etp", "micro_batch", "global_batch", "seq"),
    *("precision", "recompute", "sharding", "sequence_parallel"),
)
"""The settings of the training run that ``plan --json`` prints for each configuration."""


@dataclass(frozen=True)
class PlannedConfiguration(Prediction):
    """A configuration with its best schedule, and the prediction of its step.

    ``found``: the result of the configuration's evaluation. ``device_gib``: memory of a device, in
    GiB. ``same_step``: number of other configurations with an equal step time, which the table
    omits.
    """

    found: Evaluated
    device_gib: float
    same_step: int = 0

    @property
    def name(self) -> str:
        return self.found.configuration.name

    @property
    def lower_bound(self) -> float:
        """Lower bound on the step time of all schedules of the configuration, in milliseconds."""
        return self.found.lower_bound

    @cached_property
    def schedule(self) -> Schedule:
        """The best schedule, with memory limits and a lower bound on the makespan.

        The limits are what the devices have left for activations; the bound is in the schedule's
        report.
        """
        return certified(self.step)

    @property
    def free_gib(self) -> float:
        """Free memory of the fullest device, in GiB."""
        return self.device_gib - self.memory_gib

    @property
    def parts(self) -> dict[str, float]:
        """The parts of the step time, in milliseconds, by name (:data:`PARTS`)."""
        return self.step.parts

    def slower_than(self, best: PlannedConfiguration) -> str | None:
        """Return, in words, why the step takes longer than that of the ``best`` plan.

        The words name the part of the step time that exceeds the best plan's by the most, and by
        how much the other parts differ in total, unless that is less than 0.5 ms. None if this is
        the best plan.
        """
        if self is best:
            return None
        more = {key: self.parts.get(key, 0.0) - best.parts.get(key, 0.0) for key in PARTS}
        key = max(more, key=lambda each: more[each])
        others = sum(more.values()) - more[key]
        return f"{key} {more[key]:+.0f} ms" + f", all else {others:+.0f} ms" * (abs(others) >= 0.5)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object that ``plan --json`` prints for this configuration."""
        own = self.found.configuration
        return {
            "name": self.name,
            **{key: getattr(own.run, key) for key in RUN_KEYS},
            "layers_per_stage": list(own.run.layers_by_stage),
            "placement": own.placement.kind.value,
            "schedule": self.found.schedule,
            "splits": own.splits,
            **{key: getattr(self, key) for key in NUMBERS},
            "free_gib": self.free_gib,
            "lower_bound": self.lower_bound,
            "same_step": self.same_step,
            "parts_ms": self.parts,
        }


@dataclass(frozen=True)
class Plan:
    """The result of ``plan``: the best configurations of a model on a number of GPUs.

    ``space``: the configurations from which they were chosen. ``ranking``: the result of the search
    of this space.
    """

    space: Space
    ranking: Ranking

    @cached_property
    def plans(self) -> tuple[PlannedConfiguration, ...]:
        """The best plans, sorted by step time, at most :data:`SHOWN`.

        Among simulated configurations with the same parallel degrees, only the best is listed, and
        among listed ones with equal step times, only the first.
        """
        seen = dict[tuple[object, ...], Evaluated]()
        for each in self.ranking.evaluated:
            own = each.configuration
            if each.step_ms < inf:
                degrees = own.run.tp, own.run.pp, own.run.vp, own.run.dp, own.run.cp, own.run.ep
                seen.setdefault(degrees, each)
        alike = groupby(seen.values(), lambda each: f"{each.step_ms:.9g}")
        first = [(each, len(others)) for _, (each, *others) in alike]
        model, cluster, device = self.space.model, self.space.cluster, self.space.device_gib
        return tuple(
            PlannedConfiguration(step_of(model, cluster, each), each, device, others)
            for each, others in first[:SHOWN]
        )

    @property
    def best(self) -> PlannedConfiguration:
        """The plan with the shortest step."""
        return self.plans[0]

    @property
    def lower_bound(self) -> float:
        """Lower bound on the step time of every configuration in the space, in milliseconds, under
        the cost model of ``predict``."""
        return self.ranking.lower_bound

    @property
    def gap(self) -> float:
        """The relative distance of the best step time from the lower bound: (step - lower bound) /
        step."""
        return max(0.0, 1 - self.lower_bound / self.best.step_ms)

    @property
    def stopped(self) -> bool:
        """Whether the search ended before it was complete, at its limit or because the caller asked
        it to."""
        return self.ranking.stopped

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``plan --json`` prints."""
        chosen = self.ranking
        return {
            "model": self.space.model.name,
            "cluster": self.space.cluster.name,
            "lower_bound": self.lower_bound,
            "gap": self.gap,
            "stopped": self.stopped,
            "spreads": chosen.spreads,
            "bounded": chosen.bounded,
            "simulated": len(chosen.evaluated),
            "plans": [
                {**each.to_dict(), "reason": each.slower_than(self.best)} for each in self.plans
            ],
            "too_large": [{"name": name, "memory_gib": size} for size, name in chosen.too_large],
            "notes": [*self._notes()],
        }

    def write(self, folder: str | os.PathLike[str]) -> tuple[str, ...]:
        """Write ``plan.json``, and the files that are needed to run the best plan, into ``folder``.

        Returns notes on what other training systems do differently or cannot run. Raises InputError
        if the files cannot be written.
        """
        path = made(folder)
        notes = write_files(path, self.best.step, self.best.schedule)
        known = self.to_dict()
        write_json(known | {"notes": [*known["notes"], *notes]}, str(path / "plan.json"))
        return tuple(notes)

    def __str__(self) -> str:
        best, device = self.best, self.space.device_gib
        layers = self.best.found.configuration.run.layers_by_stage
        return "\n".join(
            [
                f"{self.space}: {best.name}, {best.found.schedule}",
                f"{duration(best.step_ms)} per step, likely {duration(best.step_ms_low)} to "
                f"{duration(best.step_ms_high)}, {best.tokens_per_s_per_gpu:.5g} tokens/s/GPU, "
                f"MFU {best.mfu * 100:.1f} %, {best.memory_gib:.1f} of {device:g} GiB "
                f"({best.free_gib:.1f} free)",
                f"{best.batch}; layers of each stage: {','.join(map(str, layers))}",
                f"links: {self.space.cluster.network}",
                f"no plan takes less than {duration(self.lower_bound)}: "
                f"{from_optimal(self.gap)} ({self.ranking})",
                "",
                self._table(),
                *self._short(),
                "",
                *(f"note: {line}" for line in self._notes()),
            ]
        )

    def _notes(self) -> Iterator[str]:
        yield from cautions(self.space.model, self.space.base, self.space.cluster)
        if not self.space.headroom and self.best.free_gib < UNSURE * self.space.device_gib:
            yield (
                f"memory: {self.best.free_gib:.1f} GiB free is less than a prediction may be off; "
                "--headroom 2GB plans with room"
            )

    def _table(self) -> str:
        header = ["plan", "schedule", "M", "step", "likely", "bound", "GiB", "free GiB", ""]
        rows: list[list[Cell]] = [
            [
                each.name,
                each.found.schedule,
                str(each.found.configuration.run.microbatches),
                each.step_ms,
                f"{duration(each.step_ms_low)} to {duration(each.step_ms_high)}",
                each.lower_bound,
                f"{each.memory_gib:.1f}",
                f"{each.free_gib:.1f}",
                "; ".join(filter(None, [each.slower_than(self.best), _alike(each.same_step)])),
            ]
            for each in self.plans
        ]
        lines = [
            "plan: degrees, b: sequences per microbatch, and other choices; last column: the part "
            "of the step that takes longer (docs/plan.md)",
            "M: microbatches per replica; likely: the range that holds four of five measured runs "
            "(docs/predict.md)",
            "step: the shortest found; plans below the first row are searched only until they "
            "cannot win, so a longer search may find a step as short as their bound",
        ]
        shown = (textwrap.fill(line, WIDTH, subsequent_indent="  ") for line in lines)
        return "\n".join([table(header, rows), *shown])

    def _short(self) -> Iterator[str]:
        """Yield a line on the configuration that exceeds the device memory by the least.

        Yields nothing if no configuration exceeds it.
        """
        if self.ranking.too_large:
            size, name = self.ranking.too_large[0]
            short = size - self.space.cluster.gpu.memory_gib
            least = f"{short:.1f} GiB" if short >= 0.05 else f"{short * 1024:.2g} MiB"
            yield f"nearest plan that does not fit: {name} lacks at least {least}"


def _alike(others: int) -> str:
    return f"{others} more with this step" if others else ""


def best_plan(request: PlanRequest) -> Plan:
    """Return the best configurations on ``request.gpus`` GPUs.

    This is what :func:`pipeloom.plan` returns without ``scale``. Raises InputError for invalid
    input, and InfeasibleError if no plan was found.
    """
    options, tell = request.search(TIME_LIMIT).options, request.progress or unheard
    cluster = cluster_of(request.cluster, request.gpu)
    space = Space.of(request, read_model(request.model), cluster)
    with Workers(request.workers or 1, request.scheduler) as workers:
        chosen = SpaceSearch(space, options, tell, workers).choose()
    found, interrupted = Plan(space, chosen), options.should_stop()
    if not found.plans:
        raise InfeasibleError(_nothing(space, chosen, interrupted=interrupted))
    if interrupted:
        tell(Note("interrupted: this is the best plan so far"))
    return found


def _nothing(space: Space, ranking: Ranking, *, interrupted: bool) -> str:
    """Return the error message for a search that found no plan.

    It names the configuration that needs the least memory. ``interrupted``: whether the caller
    ended the search.
    """
    device, words = space.cluster.gpu, "nothing fits"
    if interrupted:
        words = "interrupted before a plan that fits was found"
    elif ranking.lower_bound < inf:  # a schedule that was not tried might fit
        words = "no plan that fits was found"
    tried = [(each.tightest_gib, each.configuration.name) for each in ranking.evaluated]
    size, name = min([*tried, *ranking.too_large], default=(inf, ""))
    if size < inf:
        lacks = f"{size - device.memory_gib:.1f} more than the {device.memory_gib:.3g}"
        words += (
            f": memory: {name} needs at least {size:.1f} GiB on the fullest device, {lacks} of "
            f"{device.name}{' that headroom leaves' if space.headroom else ''}"
        )
    return f"{space}: {words}"
