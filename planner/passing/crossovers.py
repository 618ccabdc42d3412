"""What ``analyze`` finds out: each scheme built, measured, and set beside its formulas."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from pipeloom.compiler import compile_schedule
from pipeloom.ir.cost.memory_footprint import Footprint, footprint
from pipeloom.ir.cost.steady_state.send_points import posted_between_ops, step_between_ops
from pipeloom.ir.cost.steady_state.steady_state import play_iterations
from pipeloom.ir.cost.traffic import activation_traffic, over_wires, traffic
from pipeloom.ir.errors import InputError
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.problem import Objective
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.schedule import Schedule, Timing
from pipeloom.solver.families import ASYNCHRONOUS, FAMILIES, build_family
from pipeloom.solver.families.bubble_formulas import Formula, Instance, formula_of
from pipeloom.solver.families.weights.islands import Islands

# microbatch sizes at which schemes are compared, in multiples of the profile's
SIZES = [4.0**k for k in range(-5, 6)]
HALVINGS = 12


@dataclass(frozen=True)
class Bubble:
    """A bubble rate from its formula to what is built, each step adding one cause.

    ``equal``: equal stages and no delays, but their own T_F : T_B : T_W and M. ``stages``: the
    stages as they are. ``built``: delays too.
    """

    objective: str
    formula: float | None
    equal: float
    stages: float
    built: float


class Scheme:
    """One family on one profile, without a memory limit."""

    def __init__(
        self, name: str, profile: Profile, microbatches: int, objective: Objective
    ) -> None:
        self.name = name
        self._profile, self._microbatches = profile, microbatches
        self.objective = objective
        self.schedule = self._build(profile)
        self._costs: dict[float, float] = {}

    def _build(self, profile: Profile) -> Schedule:
        return build_family(
            self.name,
            profile,
            self._microbatches,
            memory_limit=math.inf,
            objective=self.objective,
        )

    @property
    def passing(self) -> Passing:
        return self.schedule.problem.placement.passing

    @property
    def weights_travel(self) -> bool:
        """Not in a bidirectional pipeline, which is mixed but keeps each stage on two ranks."""
        return self.passing is Passing.WEIGHTS or bool(self.schedule.transfers)

    @cached_property
    def timing(self) -> Timing:
        return _timing(self.schedule)

    @cached_property
    def traffic(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Bytes from rank (row) to rank in an iteration, shape (P, P)."""
        return traffic(self.schedule)

    @property
    def link_bytes(self) -> float:
        """Of the busiest link, both directions together."""
        return float(np.max(self.traffic + self.traffic.T))

    @property
    def sent_bytes(self) -> float:
        """By the rank that sends most."""
        return float(np.max(self.traffic.sum(axis=1)))

    @property
    def link_use(self) -> float | None:
        """The share of a step that its bytes take on the busiest wire; None without links."""
        if self._profile.links is None or self.step <= 0:
            return None
        return self._wire_times.get(self.wire or "", 0.0) / self.step

    @property
    def wire(self) -> str | None:
        """The name of the busiest wire; None where nothing is sent or nothing known of links."""
        times = self._wire_times
        return max(times, key=lambda wire: times[wire], default=None)

    @cached_property
    def _wire_times(self) -> dict[str, float]:
        """Milliseconds that each wire needs for its bytes of an iteration."""
        links = self._profile.links
        if links is None:
            return {}
        _, rate = links.matrices(self._profile.ranks)
        return over_wires(self._profile, self.traffic / (rate * 1e6))

    @cached_property
    def footprint(self) -> Footprint:
        return footprint(compile_schedule(self.schedule))

    @property
    def balance(self) -> float | None:
        """The least that a rank holds beside the most; None where none holds anything."""
        total = self.footprint.total
        return min(total) / max(total) if max(total) > 0 else None

    @property
    def over(self) -> bool:
        """Whether a rank holds more than the profile's ``device_memory``."""
        limits = self._profile.device_memory
        return limits is not None and any(
            held > limit for held, limit in zip(self.footprint.total, limits, strict=True)
        )

    @cached_property
    def bubble(self) -> Bubble:
        found = formula_of(self.name)
        objective = found.objective if found else self.objective
        calm = replace(self._profile, t_comm=0.0, links=None)
        equal, stages = (
            _timing(self._build(profile)).bubble_rate(objective)
            for profile in (_equalized(calm), calm)
        )
        built = self.timing.bubble_rate(objective)
        return Bubble(objective.value, self._rate(found), equal, stages, built)

    def _rate(self, formula: Formula | None) -> float | None:
        if formula is None:
            return None
        return formula.rate(Instance.of(self.schedule.problem.profile, self._microbatches))

    @cached_property
    def step(self) -> float:
        """Milliseconds from one iteration to the next, with everything on the wires."""
        return step_between_ops(self.schedule)

    @property
    def averaging(self) -> float | None:
        """What averaging over replicas adds to the cost; None where there are none."""
        return self.timing.exposed(self.objective) if self.timing.averages else None

    def cost(self, size: float) -> float:
        """Of an iteration with microbatches ``size`` times as large, with everything on the wires.

        The period is taken for the time of a step between others, without a barrier.
        """
        if size not in self._costs:
            self._costs[size] = self._cost(size)
        return self._costs[size]

    def _cost(self, size: float) -> float:
        problem = self.schedule.problem
        scaled = replace(problem, profile=enlarged(problem.profile, size))
        schedule = replace(self.schedule, problem=scaled, timing=None)
        if self.objective is Objective.PERIOD:
            return step_between_ops(schedule)
        return play_iterations(posted_between_ops(schedule)).timings[0].step(Objective.MAKESPAN)


@dataclass(frozen=True)
class Crossover:
    """From which size of microbatch on a scheme wins, in multiples of the profile's; None: never.

    ``link``: fewer bytes over the busiest link. ``formula``: the same by the bytes of a turn.
    ``time``: a shorter iteration; ``time_1f1b``: shorter than 1f1b's.
    """

    scheme: str
    link: float | None
    formula: float | None
    time: float | None
    time_1f1b: float | None


def schemes(
    profile: Profile,
    microbatches: int,
    objective: Objective,
    profile_of: Callable[[str], Profile] | None = None,
) -> tuple[list[Scheme], dict[str, str]]:
    """All families that can be built, hybrids with islands of every size, and why others cannot.

    ``profile_of``: what each is built for, where that is not ``profile``.
    """
    found, refused = [], {}
    for name in _names(profile.ranks):
        try:
            own = profile if profile_of is None else profile_of(name)
            found.append(Scheme(name, own, microbatches, objective))
        except InputError as error:
            refused[name] = str(error).removeprefix(f"{name}: ")
    return found, refused


def _names(ranks: int) -> list[str]:
    sizes = [size for size in range(2, ranks) if ranks % size == 0]
    return [
        full
        for name, family in FAMILIES.items()
        if name not in ASYNCHRONOUS
        for full in (
            [f"{name}:{size}" for size in sizes] if isinstance(family, Islands) else [name]
        )
    ]


def missing_sizes(profile: Profile) -> list[str]:
    """What a profile lacks for crossovers."""
    sizes = ("activation_bytes", "weight_bytes")
    lacking = [key for key in sizes if any(getattr(s, key) is None for s in profile.stages)]
    return (["links"] if profile.links is None else []) + lacking


def crossovers(found: Sequence[Scheme]) -> list[Crossover]:
    """Of each scheme in which weights travel, against the best in which activations do."""
    rivals = [scheme for scheme in found if not scheme.weights_travel]
    simple = [scheme for scheme in rivals if scheme.name == "1f1b"]
    fewest = min((scheme.link_bytes for scheme in rivals), default=0.0)
    return [
        Crossover(
            scheme.name,
            _sends_less_from(scheme, fewest),
            _turn_formula(scheme),
            _wins_from(scheme, rivals),
            _wins_from(scheme, simple),
        )
        for scheme in found
        if scheme.weights_travel and rivals
    ]


def _sends_less_from(scheme: Scheme, fewest: float) -> float | None:
    """The size from which on no link carries more than ``fewest``, which grows with it; else None.

    What the scheme sends grows in so far as it is activations.
    """
    grows = activation_traffic(scheme.schedule.problem)
    stays = scheme.traffic - grows
    grows, stays = grows + grows.T, stays + stays.T
    slack = fewest - grows
    if np.any((slack <= 0) & (stays + grows > 0)):
        return None
    sizes = np.divide(stays, slack, out=np.zeros_like(stays), where=slack > 0)
    return float(sizes.max())


# turns for a microbatch of a stage, in each of which two weights and a gradient leave a rank
_TURNS = {"weipipe-naive": 2.0, "weipipe-interleave": 1.0, "wzb1": 1.5, "wzb2": 3.0}


def _turn_formula(scheme: Scheme) -> float | None:
    """Two weights and a gradient a turn beside an activation and its gradient a microbatch.

    With 12 H^2 parameters a layer, all of one width, and interleave: G S > 18 H L / P.
    """
    turns, stages = _TURNS.get(scheme.name), scheme.schedule.problem.profile.stages
    sent = sum(stage.activation_bytes or 0.0 for stage in stages) / len(stages)
    if turns is None or sent <= 0:
        return None
    weights = sum(stage.weight_bytes or 0.0 for stage in stages)
    gradients = sum(
        (stage.weight_bytes or 0.0) if stage.grad_bytes is None else stage.grad_bytes
        for stage in stages
    )
    return turns * (2 * weights + gradients) / len(stages) / (2 * sent)


def _wins_from(scheme: Scheme, rivals: Sequence[Scheme]) -> float | None:
    """The size from which on, at all sizes tried, the scheme is faster than each rival; 0: at all.

    None where it is not at the largest, or where there is no rival.
    """
    if not rivals:
        return None

    def wins(size: float) -> bool:
        cost = scheme.cost(size)
        return all(cost < rival.cost(size) for rival in rivals)

    loses = [size for size in SIZES if not wins(size)]
    if not loses:
        return 0.0
    if loses[-1] == SIZES[-1]:
        return None
    low, high = loses[-1], SIZES[SIZES.index(loses[-1]) + 1]
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if wins(middle) else (middle, high)
    return high


def _timing(schedule: Schedule) -> Timing:
    assert schedule.timing is not None, "families time what they build"
    return schedule.timing


def _equalized(profile: Profile) -> Profile:
    """Every stage with the mean T_F, T_B and T_W."""
    count = profile.num_stages
    t_f, t_b, t_w = (
        sum(getattr(s, key) for s in profile.stages) / count for key in ("t_f", "t_b", "t_w")
    )
    stages = tuple(replace(s, t_f=t_f, t_b=t_b, t_w=t_w) for s in profile.stages)
    return replace(profile, stages=stages)


def enlarged(profile: Profile, size: float) -> Profile:
    """Microbatches ``size`` times as large: their times and activations are, weights are not."""

    stages = tuple(
        replace(
            s,
            t_f=s.t_f * size,
            t_b=s.t_b * size,
            t_w=s.t_w * size,
            activation_bytes=(s.activation_bytes or 0.0) * size,
        )
        for s in profile.stages
    )
    return replace(profile, stages=stages, t_comm=None)


def laden(profile: Profile, load: float) -> Profile:
    """Messages ``load`` times as large, activations, weights and gradients; ops take as long."""

    def grown(size: float | None) -> float | None:
        return None if size is None else size * load

    stages = tuple(
        replace(
            s,
            activation_bytes=grown(s.activation_bytes),
            weight_bytes=grown(s.weight_bytes),
            grad_bytes=grown(s.grad_bytes),
        )
        for s in profile.stages
    )
    return replace(profile, stages=stages)
