"""``pack``: from the lengths of a batch's sequences to microbatches and their schedules."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

from pipeloom.ir.errors import InfeasibleError, InputError
from pipeloom.ir.formats import dump_profile, dump_schedule, write_json, write_text
from pipeloom.ir.formats.packing_document import PACKING, parse_lengths
from pipeloom.ir.model.problem import Objective
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.schedule import Schedule, gap_between
from pipeloom.ir.units import counted, duration
from pipeloom.report.summaries import percent
from pipeloom.report.svg.packing import packing_svg
from pipeloom.report.text_table import table
from pipeloom.solver.core.options import SolveOptions
from pipeloom.solver.core.stopping import NEVER

from .inputs.documents import Document, Planned, read_document, read_schedule
from .inputs.placement_spec import AUTO, BIDIRECTIONAL, PlacementLike, PlacementSpec
from .inputs.problem_setup import (
    ProfileLike,
    ProfileSource,
    check_alike,
    check_whole,
    make_problem,
    objective_of,
    stages_of,
)
from .inputs.words import memory_limit_of
from .optimize import check_limits, positive
from .packing.balance import Microbatches
from .packing.bounds import packing_bound
from .packing.choose import choose, tokens_that_fit
from .packing.search import by_replica
from .packing.sequence_costs import SequenceCosts
from .solving.cache import ScheduleCache
from .solving.progress import Listener
from .solving.search import CachedSearch

TIME_LIMIT = 10.0
"""Seconds, where none are given."""


@dataclass(frozen=True)
class Packing:
    """Which sequences are in which microbatch of which replica, and each replica's schedule.

    ``lengths``: tokens of each sequence. ``replicas``: of each its microbatches, and of these the
    sequences by their places in ``lengths``. ``costs``: milliseconds of each replica's schedule, by
    the objective. ``lower_bound``: no packing into as many microbatches has a cheaper slowest one,
    whatever its schedules. ``busiest``: milliseconds of the busiest rank, of each microbatch of
    each replica.
    """

    lengths: tuple[int, ...]
    max_tokens: int | None
    replicas: tuple[Microbatches, ...]
    schedules: tuple[Schedule, ...]
    busiest: tuple[tuple[float, ...], ...]
    costs: tuple[float, ...]
    lower_bound: float

    @property
    def cost(self) -> float:
        """Milliseconds of the slowest replica, by the objective."""
        return max(self.costs)

    @property
    def gap(self) -> float:
        """(cost - lower bound) / cost."""
        return gap_between(self.cost, self.lower_bound)

    @cached_property
    def document(self) -> dict[str, Any]:
        """The packing as a JSON object: ``packing.json`` of ``pack -o``."""
        rows = zip(self.replicas, self.busiest, self.costs, strict=True)
        return {
            "format": PACKING,
            "version": 1,
            "lengths": list(self.lengths),
            "max_tokens": self.max_tokens,
            "replicas": [
                {"microbatches": packed, "busiest_ms": list(busiest), "cost": cost}
                for packed, busiest, cost in rows
            ],
            "cost": self.cost,
            "lower_bound": self.lower_bound,
        }

    def to_dict(self) -> dict[str, Any]:
        """The object that ``pack --json`` prints."""
        return self.document | {"gap": self.gap}

    def svg(self) -> str:
        """The packing as a picture."""
        return packing_svg(self.document)

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Writes ``packing.json``, ``packing.svg``, and of each replica ``profile.json``, with one
        number a microbatch and the memory limit, and ``schedule.json``; of several
        ``profile-0.json`` and so on.

        Raises InputError where it cannot be written.
        """
        path = Path(folder)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"output: {os.fspath(folder)}: {error.strerror}") from None
        write_json(self.document, str(path / "packing.json"))
        write_text(self.svg(), str(path / "packing.svg"))
        for r, schedule in enumerate(self.schedules):
            end = f"-{r}.json" if len(self.schedules) > 1 else ".json"
            problem = schedule.problem
            limits = problem.memory_limit if problem.limited else None
            profile = replace(problem.profile, memory_limit=limits)
            write_json(dump_profile(profile), str(path / f"profile{end}"))
            write_json(dump_schedule(schedule), str(path / f"schedule{end}"))

    def __str__(self) -> str:
        count = sum(map(len, self.replicas))
        where = f" of {counted(len(self.replicas), 'replica')}" if len(self.replicas) > 1 else ""
        return "\n".join(
            [
                f"{counted(len(self.lengths), 'sequence')} of {sum(self.lengths)} tokens in "
                f"{counted(count, 'microbatch')}{where}: {duration(self.cost)} a step; no packing "
                f"takes less than {duration(self.lower_bound)} (gap {percent(self.gap)})",
                "",
                self._table(),
            ]
        )

    def _table(self) -> str:
        header = ["replica", "sequences", "tokens", "busiest rank, ms", "step"]
        rows = [
            [
                str(r),
                _range([len(each) for each in packed]),
                _range([sum(self.lengths[i] for i in each) for each in packed]),
                _range(busiest),
                duration(cost),
            ]
            for r, (packed, busiest, cost) in enumerate(
                zip(self.replicas, self.busiest, self.costs, strict=True)
            )
        ]
        return table(header, rows)


def _range(values: Any) -> str:
    return f"{min(values):.4g} - {max(values):.4g}"


def pack(
    lengths: Document,
    profile: ProfileLike | ProfileSource,
    microbatches: int | None = None,
    *,
    max_tokens: int | None = None,
    data_parallel: int | None = None,
    memory_limit: float | str | None = None,
    objective: str | Objective = Objective.PERIOD,
    placement: PlacementLike | None = None,
    start: Schedule | Planned | Document | None = None,
    time_limit: float | None = None,
    work_limit: float | None = None,
    seed: int = 0,
    cache: str | ScheduleCache | None = None,
    progress: Listener | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Packing:
    """Packs sequences into microbatches so that the planned step is shortest, and schedules these.

    ``lengths``: a lengths file or its object: tokens of each sequence, and what the profile's
    microbatch was (``docs/packing.md``). ``profile``: by stages, measured on one microbatch.
    ``microbatches``: of each replica. ``max_tokens``: of a microbatch at most. ``data_parallel``:
    replicas of the pipeline, as many as the profile says by default, else one. ``start``: an
    earlier schedule of as many microbatches, whose order of ops is begun with. ``time_limit``:
    seconds for packing and schedules together, 10 by default; other options as of ``optimize``.
    Recomputation, offload and ops at once are not planned, and BW takes as long as B and W.

    Raises InputError for wrong input, and InfeasibleError where nothing fits.
    """
    document, where = read_document(lengths, "lengths")
    given = parse_lengths(document, where)
    source = ProfileSource.of(profile, progress)
    if microbatches is None:
        raise InputError("microbatches: missing; expected a number")
    stages = stages_of(source, microbatches, "none", "none")
    bare = [replace(stage, t_bw=None, t_fb=None) for stage in stages.stages]
    stages = replace(stages, stages=tuple(bare))
    check_alike(stages, f"{source.where}: stages", "pack, which makes the lists")
    spec = PlacementSpec.of(placement or "linear")
    if spec.name == AUTO:
        raise InputError(f"placement: expected one placement for pack, got {spec.name}")
    limits: dict[str, Any] = {"memory_limit": memory_limit_of(memory_limit, source)}
    limits["objective"] = objective_of(objective)
    if spec.name == BIDIRECTIONAL:
        raise InputError(f"placement: expected one copy of each stage for pack, got {spec.name}")
    problem = make_problem(stages, microbatches, placement=spec, where=source.where, **limits)
    replicas = _replicas(data_parallel, stages)
    _check_room(given.lengths, where, microbatches * replicas, max_tokens)
    check_whole("seed", seed)
    check_limits(time_limit, work_limit)
    options = SolveOptions(
        time_limit=positive("time_limit", time_limit) or TIME_LIMIT,
        work_limit=positive("work_limit", work_limit),
        seed=seed,
        should_stop=should_stop or NEVER,
    )
    search = CachedSearch.of(options, cache, progress)
    costs = SequenceCosts.of(problem, given, where)
    most = _most_tokens(costs, where, inf if max_tokens is None else max_tokens)
    begun = None if start is None else read_schedule(start)[0]
    packed, found = choose(costs, replicas, most, search, begun)
    bound = packing_bound(costs, microbatches, replicas)
    return _packing(costs, packed, found, bound, max_tokens)


def _packing(
    costs: SequenceCosts,
    packed: Microbatches,
    schedules: list[Schedule],
    bound: float,
    max_tokens: int | None,
) -> Packing:
    parts = tuple(by_replica(packed, costs.problem.microbatches))
    of_ranks = costs.of_ranks()
    row = of_ranks[int(of_ranks.sum(axis=1).argmax())]
    objective = costs.problem.objective
    timings = [schedule.timing for schedule in schedules]
    return Packing(
        lengths=tuple(costs.lengths.tolist()),
        max_tokens=max_tokens,
        replicas=parts,
        schedules=tuple(schedules),
        busiest=tuple(tuple(float(row[each].sum()) for each in part) for part in parts),
        costs=tuple(t.iteration_time(objective) for t in timings if t is not None),
        lower_bound=bound,
    )


def _replicas(given: int | None, profile: Profile) -> int:
    """How many replicas there are. Raises InputError."""
    known = None if profile.data_parallel is None else profile.data_parallel.size
    if given is None:
        return known or 1
    check_whole("data_parallel", given)
    if given == 0 or known not in (None, given):
        expected = "at least 1" if known is None else f"{known}, as the profile has"
        raise InputError(f"data_parallel: expected {expected}, got {given}")
    return given


def _check_room(lengths: list[int], where: str, number: int, most: int | None) -> None:
    """Raises InputError where there are too few sequences, or too many tokens."""
    if len(lengths) < number:
        raise InputError(
            f"microbatches: expected at most {len(lengths)} in all, one for each sequence of "
            f"{where}, got {number}"
        )
    if most is None:
        return
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise InputError(f"max_tokens: expected a whole number >= 1, got {most!r}")
    longest = max(lengths)
    if longest > most:
        at = lengths.index(longest)
        raise InputError(
            f"{where}: lengths[{at}]: expected at most --max-tokens ({most}), got {longest}"
        )
    if sum(lengths) > number * most:
        raise InputError(
            f"max_tokens: expected at least {-(-sum(lengths) // number)} for {sum(lengths)} tokens "
            f"in {counted(number, 'microbatch')}, got {most}"
        )


def _most_tokens(costs: SequenceCosts, where: str, most: float) -> float:
    """``most``, or what memory holds of one microbatch, if that is less. Raises InfeasibleError
    where it does not hold a sequence."""
    fit = tokens_that_fit(costs)
    longest = int(costs.lengths.max())
    if longest > fit:
        at = int(costs.lengths.argmax())
        raise InfeasibleError(
            f"{where}: lengths[{at}]: memory holds {int(fit)} tokens of a microbatch, got {longest}"
        )
    return min(most, fit)
