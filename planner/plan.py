"""``plan``: from a model and a cluster to the best configurations, with a bound over all."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from math import inf
from typing import Any

from pipeloom.ir.errors import InfeasibleError
from pipeloom.ir.formats import write_json, write_text
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.units import counted, duration
from pipeloom.report.summaries import from_optimal
from pipeloom.report.svg.plans import PlanPoint, PlansPicture, plans_svg
from pipeloom.report.text_table import Cell, table

from .configurations.choose import Ranking, SpaceSearch, summary
from .configurations.evaluation import Evaluated, certified, planned_step
from .configurations.files import write_files
from .configurations.legend import legend
from .configurations.predict_line import predict_line
from .configurations.reasons import parts_of, reason
from .configurations.space import Space
from .folders import made
from .models.reading import ModelLike
from .predict import ClusterLike, Prediction, cautions, cluster_of
from .prediction.step import StepTimes
from .requests.search import Limited
from .solving.progress import Listener, unheard
from .solving.workers import KeptWorkers

TIME_LIMIT = 45.0
"""Default time limit, in seconds."""
WIDTH = 100
"""Width, in characters, of the lines below the table."""
SHOWN = 8
"""Number of plans in the table, not counting FSDP over all GPUs."""
UNSURE = 0.01
"""Relative error of predicted memory, as a share of a device's memory (docs/predict.md)."""


@dataclass(frozen=True)
class PlannedConfiguration:
    """A configuration with its schedule.

    ``same_step``: number of configurations with exactly the same step time that the table omits.
    """

    space: Space
    found: Evaluated
    same_step: int = 0

    @property
    def name(self) -> str:
        return self.found.configuration.name

    @property
    def step_ms(self) -> float:
        return self.found.step_ms

    @property
    def lower_bound(self) -> float:
        return self.found.lower_bound

    @cached_property
    def step(self) -> StepTimes:
        """The times of its step with this schedule."""
        return planned_step(self.space.model, self.space.cluster, self.found)

    @cached_property
    def prediction(self) -> Prediction:
        return Prediction.of(self.step)

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule, within the memory of its devices; its report holds the lower bound on the
        makespan."""
        return certified(self.step)

    @property
    def free_gib(self) -> float:
        """Free memory of the fullest device, in GiB."""
        return self.space.device_gib - self.prediction.memory_gib

    @cached_property
    def parts(self) -> dict[str, float]:
        """The step time in milliseconds, divided by what it is spent on."""
        return parts_of(self.step)

    def to_dict(self) -> dict[str, Any]:
        """This plan's object in the output of ``plan --json``."""
        run, shown = self.found.configuration.run, self.prediction
        keys = ("gpus", "tp", "pp", "vp", "dp", "cp", "ep", "etp", "micro_batch", "global_batch")
        steps = ("step_ms", "step_ms_low", "step_ms_high")
        numbers = (*steps, "tokens_per_s_per_gpu", "model_tflops_per_gpu", "mfu", "memory_gib")
        return {
            "name": self.name,
            **{key: getattr(run, key) for key in (*keys, "seq")},
            "precision": run.precision.value,
            "recompute": self.found.configuration.recompute,
            "offload": "auto" if self.found.configuration.offload else "none",
            "sharding": run.sharding.value,
            "sequence_parallel": run.sequence_parallel,
            "layers_per_stage": list(run.layers_by_stage),
            "placement": self.found.configuration.placement,
            "schedule": self.found.schedule,
            "splits": self.found.configuration.splits,
            **{key: getattr(shown, key) for key in numbers},
            "free_gib": self.free_gib,
            "lower_bound": self.lower_bound,
            "same_step": self.same_step,
            "parts_ms": self.parts,
        }


@dataclass(frozen=True)
class Plan:
    """The best configurations of a model on a number of GPUs, sorted by step time."""

    space: Space
    ranking: Ranking
    where: str
    """The cluster as it was given: the preset's name or the file."""

    @cached_property
    def plans(self) -> tuple[PlannedConfiguration, ...]:
        """The best configuration of each set of parallel degrees that was simulated, sorted by step
        time; of those with equal step times, only the first."""
        seen = dict[tuple[object, ...], Evaluated]()
        for each in self.ranking.evaluated:
            run = each.configuration.run
            if each.step_ms < inf:
                degrees = run.tp, run.pp, run.vp, run.dp, run.cp, run.ep
                seen.setdefault((*degrees, each.configuration.passing), each)
        alike = groupby(seen.values(), lambda each: f"{each.step_ms:.9g}")
        first = [(each, len(others)) for _, (each, *others) in alike]
        rest = [one for one in first[SHOWN:] if one[0].configuration.is_fsdp][:1]
        return tuple(PlannedConfiguration(self.space, *one) for one in first[:SHOWN] + rest)

    @property
    def best(self) -> PlannedConfiguration:
        """The configuration with the shortest step."""
        return self.plans[0]

    @property
    def lower_bound(self) -> float:
        """Lower bound on the step time of every configuration in the space, by ``predict``'s model,
        in milliseconds."""
        return self.ranking.lower_bound

    @property
    def gap(self) -> float:
        """(step - lower bound) / step."""
        return max(0.0, 1 - self.lower_bound / self.best.step_ms)

    @property
    def stopped(self) -> bool:
        """Whether a limit, or the caller, ended the search before it was complete."""
        return self.ranking.stopped

    def to_dict(self) -> dict[str, Any]:
        """The object that ``plan --json`` prints."""
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
                {**each.to_dict(), "reason": words}
                for each, words in zip(self.plans, self._reasons, strict=True)
            ],
            "too_large": [{"name": name, "memory_gib": size} for size, name in chosen.too_large],
            "notes": [*self._notes()],
        }

    @cached_property
    def _reasons(self) -> tuple[str | None, ...]:
        """For each plan the reason why it is slower than the best; None for the best."""
        parts = [each.parts for each in self.plans]
        return (None, *(reason(each, parts[0]) for each in parts[1:]))

    def write(self, folder: str | os.PathLike[str]) -> tuple[str, ...]:
        """Write ``plan.json``, ``plan.svg`` and the files that run the best plan into ``folder``.

        Returns notes on what other systems do differently or cannot run. Raises InputError if the
        files cannot be written.
        """
        path = made(folder)
        notes = write_files(path, self.best.step, self.best.schedule)
        if self.best.found.order is not None:
            line = predict_line(
                self.space, self.where, self.best.found, str(path / "schedule.json")
            )
            notes = [f"this plan by predict: {line}", *notes]
        known = self.to_dict()
        write_json(known | {"notes": [*known["notes"], *notes]}, str(path / "plan.json"))
        write_text(plans_svg(self._picture()), str(path / "plan.svg"))
        return tuple(notes)

    def _picture(self) -> PlansPicture:
        base, shown = self.space.base, [each.prediction for each in self.plans]
        points = [
            PlanPoint(each.name, found.memory_gib, found.tokens_per_s_per_gpu)
            for each, found in zip(self.plans, shown, strict=True)
        ]
        return PlansPicture(
            f"{self.space.model.name} on {_devices(self.space)}",
            points,
            self.space.device_gib,
            base.global_batch * base.seq / base.gpus / self.lower_bound * 1e3,
        )

    def __str__(self) -> str:
        best, device = self.best.prediction, self.space.device_gib
        layers = self.best.found.configuration.run.layers_by_stage
        return "\n".join(
            [
                f"{self.space.model.name} on {_devices(self.space)}: {self.best.name}, "
                f"{self.best.found.schedule}",
                f"{duration(best.step_ms)} per step, likely {duration(best.step_ms_low)} to "
                f"{duration(best.step_ms_high)}, {best.tokens_per_s_per_gpu:.5g} tokens/s/GPU, "
                f"MFU {best.mfu * 100:.1f} %, {best.memory_gib:.1f} of {device:g} GiB "
                f"({self.best.free_gib:.1f} free)",
                f"{best.batch}; layers of each stage: {','.join(map(str, layers))}",
                f"links: {self.space.cluster.network}",
                f"no plan takes less than {duration(self.lower_bound)}: "
                f"{from_optimal(self.gap)} ({summary(self.ranking)})",
                "",
                self._table(),
                *self._short(),
                *self._other_passing(),
                "",
                *self._predicted(),
                *(f"note: {line}" for line in self._notes()),
            ]
        )

    def _notes(self) -> Iterator[str]:
        yield from cautions(self.space.model, self.space.base)
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
                f"{duration(each.prediction.step_ms_low)} to "
                f"{duration(each.prediction.step_ms_high)}",
                each.lower_bound,
                f"{each.prediction.memory_gib:.1f}",
                f"{each.free_gib:.1f}",
                "; ".join([*filter(None, [words]), *_alike(each.same_step)]),
            ]
            for each, words in zip(self.plans, self._reasons, strict=True)
        ]
        lines = [
            *legend([each.name for each in self.plans], self._reasons),
            "M: microbatches per replica; likely: the range that holds four of five measured runs "
            "(docs/predict.md)",
            "step: the shortest found; plans below the first row are searched only until they "
            "cannot win, so a longer search may find a step as short as their bound",
        ]
        shown = (textwrap.fill(line, WIDTH, subsequent_indent="  ") for line in lines)
        return "\n".join([table(header, rows), *shown])

    def _short(self) -> Iterator[str]:
        """A line on the configuration that exceeds the memory by the least."""
        if self.ranking.too_large:
            size, name = self.ranking.too_large[0]
            short = size - self.space.cluster.gpu.memory_gib
            least = f"{short:.1f} GiB" if short >= 0.05 else f"{short * 1024:.2g} MiB"
            yield f"nearest plan that does not fit: {name} lacks at least {least}"

    def _other_passing(self) -> Iterator[str]:
        """With ``passing="auto"``, a line on each kind of passing that is not in the table: why it
        lost."""
        shown = {each.found.configuration.passing for each in self.plans}
        other = [each for each in (Passing.ACTIVATIONS, Passing.WEIGHTS) if each not in shown]
        for passing in other if self.space.passing == "auto" else ():
            tried = [e for e in self.ranking.evaluated if e.configuration.passing is passing]
            if not tried:
                words = "nothing that may be faster fits"
            elif (best := tried[0]).step_ms < inf:
                words = f"{best.configuration.name} takes {duration(best.step_ms)}"
            else:
                least = min(each.lower_bound for each in tried)
                wins = least < self.best.step_ms
                found = "no schedule that fits was found" if wins else "cannot win"
                words = f"{found}; none takes less than {duration(least)}"
            yield f"passing {passing.value}: {words}"

    def _predicted(self) -> Iterator[str]:
        """The command that predicts the best plan, if its schedule is a family's.

        For other schedules, :meth:`write` returns the command, with the file of the schedule.
        """
        found = self.best.found
        if found.order is None:
            line = predict_line(self.space, self.where, found, found.schedule)
            yield from ("", "this plan by predict:", f"  {line}")


def _devices(space: Space) -> str:
    return f"{counted(space.base.gpus, 'GPU')} of {space.cluster.name}"


def _alike(others: int) -> list[str]:
    return [f"{others} more with this step"] if others else []


def plan(
    model: ModelLike,
    cluster: ClusterLike | None = None,
    *,
    time_limit: float | None = None,
    work_limit: float | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    progress: Listener | None = None,
    should_stop: Callable[[], bool] | None = None,
    **run: Any,
) -> Plan:
    """Find the best configurations of ``model`` on ``cluster``, by ``predict``'s model.

    ``model``: a preset's name, or a mapping or file with the keys of Hugging Face's
    ``config.json``. ``cluster``: a preset's name, a file or an object; None: the default cluster of
    ``gpu``.

    ``run``: ``gpus`` and ``global_batch``, and every other argument of ``predict`` that is fixed.
    ``tp``, ``pp``, ``vp``, ``dp``, ``cp``, ``ep``, ``etp``, ``micro_batch``, ``recompute``,
    ``sharding``, ``layers_per_stage`` and ``schedule`` are chosen if they are not given.
    ``recompute="auto"`` also lets schedules recompute whole stages for some microbatches;
    ``offload="auto"`` lets them move activations to the host and back, over the cluster's ``host``
    link. ``headroom``: memory that plans leave free on each device, in bytes or as ``"4GB"``.
    ``passing``: what pipelines send: ``activations`` (the default), ``weights``, or ``auto`` for
    either.

    ``time_limit``: seconds, 45 by default. ``work_limit``: instead, millions of simulated ops in
    total, so that the answer is the same on every machine. ``workers`` and ``scheduler``: as in
    :func:`pipeloom.sweep`; schedules of several configurations are searched in parallel.
    ``progress`` is called with each event; its ``str`` is a line of text. When ``should_stop``
    returns true, the best result so far is returned.

    Raises InputError for invalid input, with one line per fault, and InfeasibleError if nothing
    fits, with the amount of memory that is lacking.
    """
    limits = Limited(time_limit=time_limit, work_limit=work_limit, should_stop=should_stop)
    options = limits.search(TIME_LIMIT).options
    space = Space.of(model, cluster_of(cluster, run.get("gpu")), run)
    with closing(KeptWorkers(1 if workers is None else workers, scheduler)) as spread:
        spread.check()
        chosen = SpaceSearch(space, options, progress or unheard, spread).choose()
    where = os.fspath(cluster) if isinstance(cluster, str | os.PathLike) else space.cluster.name
    found = Plan(space, chosen, where)
    if not found.plans:
        raise InfeasibleError(_nothing(space, chosen, interrupted=options.should_stop()))
    return found


def _nothing(space: Space, ranking: Ranking, *, interrupted: bool) -> str:
    """The message if no plan was found, with the configuration that needs the least memory."""
    device = space.cluster.gpu
    where = f"{space.model.name} on {_devices(space)}"
    tried = [each for each in ranking.evaluated if each.tightest_gib < inf]
    least = [(each.tightest_gib, each.configuration.name) for each in tried] + ranking.too_large
    if interrupted:
        return f"{where}: interrupted before a plan that fits was found"
    if ranking.stopped or (not least and ranking.lower_bound < inf):
        nearest = min(least, default=None)
        more = "" if nearest is None else f"; nearest: {nearest[1]}, {nearest[0]:.1f} GiB"
        return f"{where}: no plan that fits was found in the time or work given{more}"
    if not least:
        return f"{where}: nothing fits: memory: no schedule of what may be spread holds"
    size, name = min(least)
    family = f", {space.family}," if space.family else ""
    nothing, needs = ("nothing fits", "needs at least")
    if ranking.lower_bound < inf:  # another schedule might fit
        nothing, needs = ("nothing that was tried fits", "takes")
    return (
        f"{where}: {nothing}: memory: {name}{family} {needs} {size:.1f} GiB on the fullest "
        f"device, {size - device.memory_gib:.1f} more than the {device.memory_gib:.3g} of "
        f"{device.name}{' that headroom leaves' if space.headroom else ''}"
    )
