"""``analyze``: what each scheme costs on a cluster, and from where on to pass weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.links import Link
from pipeloom.ir.model.problem import Objective
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.units import amount
from pipeloom.report.text_table import table
from pipeloom.solver.families import ASYNCHRONOUS, FAMILIES, build_family
from pipeloom.solver.families.bubble_formulas import Instance, formula_of
from pipeloom.solver.families.weights.islands import IslandFamily

from .clusters.islands import islands
from .compare import evaluate_families
from .evaluation import columns
from .evaluation.evaluation import Evaluation
from .evaluation.scaling import equalized
from .evaluation.table import EvaluationTable, evaluations_table
from .inputs.documents import Planned, naming, read_schedule
from .inputs.problem_setup import (
    ProfileLike,
    ProfileSource,
    check_microbatches,
    check_whole,
    objective_of,
)
from .models.uniform import Transformer
from .partition.fixed_cut import Profiles, profiles_of
from .passing.crossovers import Crossover, crossovers, missing_sizes
from .robustness.late_steps import LateStep, late_step, late_table
from .robustness.variation import Slow, Spread, Variation
from .solving.progress import Listener

Drawn = Schedule | Planned

MOST_ANALYZED = 100_000
"""Stages times microbatches of each family's schedule, all of which are built, and simulated at
many sizes: some 4 CPU ms for each pair."""


@dataclass(frozen=True)
class BubbleSteps:
    """A bubble rate from its formula to what is built, each step adding one cause.

    ``equal``: equal stages and no delays, but their own T_F : T_B : T_W and M. ``stages``: the
    stages as they are. ``built``: delays too.
    """

    objective: str
    formula: float | None
    equal: float
    stages: float
    built: float

    @classmethod
    def of(cls, row: Evaluation) -> BubbleSteps:
        """By the cost that the family's formula is about, else by the objective."""
        formula, microbatches = formula_of(row.name), row.schedule.problem.microbatches
        objective = formula.objective if formula else row.objective
        calm = replace(row.profile, t_comm=0.0, links=None)

        def rate(profile: Profile) -> float:
            built = build_family(
                row.name, profile, microbatches, memory_limit=math.inf, objective=row.objective
            )
            return Evaluation(row.name, built).timing.bubble_rate(objective)

        return cls(
            objective.value,
            formula.rate(Instance.of(row.profile, microbatches)) if formula else None,
            rate(equalized(calm)),
            rate(calm),
            row.timing.bubble_rate(objective),
        )

    def cells(self) -> list[str]:
        """The formula's rate, what each cause adds in points, and the rate that is built."""
        first = None if self.formula is None else self.equal - self.formula
        added = map(_added, (first, self.stages - self.equal, self.built - self.stages))
        return [self.objective, columns.share(self.formula), *added, columns.share(self.built)]


@dataclass(frozen=True)
class Analysis(EvaluationTable):
    """Schemes built without a memory limit, and why others cannot be.

    ``bubbles``: of each that is built. ``crossovers``: none where sizes are missing. ``tokens``: of
    a microbatch. ``partition``: how layers were cut. ``model``: what the profile is calculated of.
    ``late``: where op times vary, where that was asked.
    """

    bubbles: tuple[BubbleSteps, ...]
    crossovers: tuple[Crossover, ...]
    tokens: int | None = None
    partition: str | None = None
    model: Transformer | None = None
    late: tuple[LateStep, ...] = ()

    @property
    def refused(self) -> dict[str, str]:
        return {row.name: row.refusal for row in self.rows if row.planned is None}

    def to_dict(self) -> dict[str, Any]:
        """The object that ``analyze --json`` prints."""
        return (
            super().to_dict()
            | {
                "tokens": self.tokens,
                "partition": self.partition,
                "recomputed": None if self.model is None else self.model.recomputed_bytes,
                "schemes": [
                    row.to_dict(on_cluster=True) | {"bubble": asdict(bubble)}
                    for row, bubble in zip(self.built, self.bubbles, strict=True)
                ],
                "refused": self.refused,
                "crossovers": list(map(asdict, self.crossovers)),
                "missing": missing_sizes(self.profile),
            }
            | ({"late": [row.to_dict() for row in self.late]} if self.late else {})
        )

    def __str__(self) -> str:
        parts = [self._figures(), self._bubbles(), self._crossings()]
        parts += [late_table(self.late)] if self.late else []
        if self.partition is not None:
            words = "layers cut for each scheme into as many stages as it runs"
            parts.append(f"{words}: {self.partition}")
        parts.append("\n".join(f"{name}: {why}" for name, why in self.refused.items()))
        return "\n\n".join(filter(None, parts))

    def _figures(self) -> str:
        of = columns
        shown = [of.SCHEME, of.PERIOD, of.MAKESPAN, of.STEP]
        shown += [] if self.profile.data_parallel is None else [of.AVERAGING]
        shown += [of.BUSIEST_LINK, of.WIRE_USE, of.WIRE, of.SENT]
        shown += [of.ACTIVATIONS, of.DEVICE_MEMORY, of.BALANCE]
        lines = [evaluations_table(self.built, shown)]
        if any(stage.weight_bytes is None for stage in self.profile.stages):
            lines.append("weight_bytes unknown: weights take no memory and no time here")
        if self.model is not None and self.model.recompute:
            lines.append(f"and {amount(self.model.recomputed_bytes)} while a layer is recomputed")
        if over := [row.name for row in self.built if row.over_device_memory]:
            lines.append(f"more than device_memory: {', '.join(over)}")
        return "\n".join(lines)

    def _bubbles(self) -> str:
        header = ["bubble", "of the", "formula", "T_F:T_B:T_W, M", "stages", "delays", "built"]
        pairs = zip(self.built, self.bubbles, strict=True)
        return table(header, [[row.name, *bubble.cells()] for row, bubble in pairs])

    def _crossings(self) -> str:
        if missing := missing_sizes(self.profile):
            return f"no crossovers: the profile lacks {', '.join(missing)}"
        unit = "times the microbatch" if self.tokens is None else "tokens a microbatch (G x S)"
        header = [f"wins from, {unit}", "bytes on a link", "formula", "time", "time, of 1f1b"]
        rows = [
            [
                each.scheme,
                *(self._size(value, "-") for value in (each.link, each.formula)),
                *(self._size(value, "never") for value in (each.time, each.time_1f1b)),
            ]
            for each in self.crossovers
        ]
        return table(header, rows) + "\nagainst the best of those that pass activations"

    def _size(self, value: float | None, none: str) -> str:
        if not value:
            return none if value is None else "any"
        return f"{value:.3g}" if self.tokens is None else f"{value * self.tokens:.4g}"


def analyze(
    profile: ProfileLike | ProfileSource | Drawn | None,
    microbatches: int | None = None,
    *,
    objective: str | Objective = Objective.PERIOD,
    tokens: int | None = None,
    transformer: Transformer | Mapping[str, float] | None = None,
    cluster: Profile | Mapping[str, float] | None = None,
    partition: str | None = None,
    spread: Spread = None,
    slow: Slow = None,
    seed: int = 0,
    progress: Listener | None = None,
) -> Analysis | LateStep:
    """Costs of each scheme on a cluster, from built schedules without a memory limit.

    ``tokens``: of the microbatch that the profile was measured with. ``transformer``: a calculated
    model in place of the profile's stages, by the keys of :class:`Transformer`. ``cluster``: in
    place of the profile's ranks and links, by ``ranks``, ``island``, ``inside``, ``between`` (GB/s)
    and ``latency`` (ms). ``partition``: how layers are cut, ``balanced`` (the default) or ``even``.

    ``spread``: what becomes of each step where op times spread as the profile says (True), by a
    relative standard deviation, or as in files of measured ops; ``slow``: or where ranks take so
    many times as long; ``seed``: of the samples. With one of these a schedule or a program may
    stand in place of the profile, which is answered alone. Raises InputError for wrong input.
    """
    check_whole("seed", seed)
    variation = Variation.of(spread, slow, progress)
    varies = variation.spreads or bool(variation.slow)
    own = None if profile is None else _schedule(profile, progress)
    if own is not None:
        if not varies:
            raise InputError("profile: expected --spread or --slow beside a schedule")
        if microbatches not in (None, own.problem.microbatches):
            raise InputError("microbatches: expected none beside a schedule, which has its own")
        return late_step(own, variation, seed=seed)
    if (profile is None) == (cluster is None):
        raise InputError("PROFILE, --cluster: expected one of them")
    if transformer is None and cluster is not None:
        raise InputError("cluster: needs --transformer, which says what its ranks run")
    if transformer is not None and tokens is not None:
        raise InputError("tokens: not together with --transformer, which says how many there are")
    model = None if transformer is None else _transformer(transformer)
    given = profile if cluster is None else _cluster(cluster)
    assert given is not None
    assert not isinstance(given, Schedule | Planned)
    given = ProfileSource.of(given, progress)
    microbatches = given.number(microbatches)
    found, profile_of, way = _profiles(given, microbatches, model, partition)
    check_microbatches(microbatches, found.num_stages, MOST_ANALYZED)
    rows = evaluate_families(
        _names(found.ranks), profile_of, microbatches, math.inf, objective_of(objective)
    )
    built = [row for row in rows if row.planned is not None]
    return Analysis(
        found,
        microbatches,
        objective_of(objective),
        tuple(rows),
        tuple(map(BubbleSteps.of, built)),
        () if missing_sizes(found) else tuple(crossovers(built)),
        tokens if model is None else model.tokens,
        way,
        model,
        _late(built, variation, seed) if varies else (),
    )


def _schedule(
    given: ProfileLike | ProfileSource | Drawn, progress: Listener | None
) -> Schedule | None:
    """The schedule that is given in place of a profile."""
    if isinstance(given, ProfileSource):
        return given.in_place
    if isinstance(given, Schedule | Planned):
        return read_schedule(given)[0]
    return ProfileSource(given, progress).in_place


def _late(rows: Sequence[Evaluation], variation: Variation, seed: int) -> tuple[LateStep, ...]:
    """Answers for schedules with as many stages as were measured; it is a fault if none has."""
    fit = [row for row in rows if variation.fits(row.schedule.problem)] or rows[:1]
    return tuple(late_step(row.schedule, variation, row.name, seed=seed) for row in fit)


def _profiles(
    source: ProfileSource, microbatches: int, model: Transformer | None, partition: str | None
) -> tuple[Profile, Profiles, str | None]:
    """The profile, that of each family, and how layers are cut, None where none are."""
    found, profile_of, cut = profiles_of(source, microbatches, partition)
    if model is None:
        return found, profile_of, None if cut is None else str(cut.way)
    with naming("transformer"):
        calculated = model.on(found)
    return calculated, lambda _: calculated, None


def _transformer(given: Transformer | Mapping[str, float]) -> Transformer:
    if isinstance(given, Transformer):
        return given
    options: dict[str, Any] = dict(given)
    return Transformer(**options | {"recompute": options.get("recompute") == 1})


def _cluster(given: Profile | Mapping[str, float]) -> Profile:
    """A calculated cluster, which has no stages yet."""
    if isinstance(given, Profile):
        return given
    latency = given.get("latency", 0.0)
    inside, between = (Link(latency, given[key]) for key in ("inside", "between"))
    with naming("cluster"):
        return islands(int(given["ranks"]), int(given["island"]), inside, between)


def _names(ranks: int) -> list[str]:
    """All synchronous families, hybrids with islands of every size."""
    sizes = [size for size in range(2, ranks) if ranks % size == 0]
    return [
        full
        for name, family in FAMILIES.items()
        if name not in ASYNCHRONOUS
        for full in (
            [f"{name}:{size}" for size in sizes] if isinstance(family, IslandFamily) else [name]
        )
    ]


def _added(value: float | None) -> str:
    if value is None:
        return "-"
    return "0" if abs(value) < 5e-7 else f"{value * 100:+.2f}"
