"""A result of planning: a schedule with its lower bound, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pipeloom.ir.errors import InfeasibleError, InputError
from pipeloom.ir.formats import dump_schedule
from pipeloom.ir.model.problem import Objective
from pipeloom.ir.model.schedule import Schedule, Status, gap_between
from pipeloom.ir.units import sufficient_size, unit_meant
from pipeloom.report.summaries import describe, facts, proven, transfer_note, uncosted
from pipeloom.solver.core.schedule_cost import status_under

from .candidates import Candidate, least_bound
from .figures import ScheduleFigures

if TYPE_CHECKING:
    from .explanation import Explanation

OPTIMIZER = "optimize"
"""The name of the optimizer's results."""
KEPT = ("lower_bound", "bound", "assumed", "facts", "words", "step")
"""The fields of a result that a cache stores unchanged."""
IN_ROWS = (
    "lower_bound", "least_bound", "averaging", "bubble_rate", "work_ratio", "peak_memory",
    "lower_bound_rate", "gap", "scope", "link_bytes", "balance", "assumed", "method", "bound",
)  # fmt: skip
ON_CLUSTER = ("step_bubble_rate", "wire_use")


@dataclass(frozen=True, eq=False)
class Result(ScheduleFigures):
    """A schedule with its lower bound and the candidates that it was compared with, or the reason
    why there is none.

    ``name``: ``optimize``, the family, or, in a sweep, the memory limit. ``planned``: the schedule,
    or None. ``why_not``: the reason why there is no schedule, or why it cannot be used; else None.
    ``infeasible``: the error with the memory that a schedule would need; else None. ``scheme``: the
    scheme of passing to which the schedule belongs; by default ``name``.

    ``lower_bound``, ``bound``: the lower bound on the cost of all schedules of the chosen
    candidate, and the name of its argument. By default, they are those of the schedule's report; if
    the profile is by layers, they are for all cuts. ``candidates``: what was compared, each with
    its own bound. ``assumed``: how stages were cut for the schedule, in words; None if they were
    not. ``step``: the step time, if the scheme was chosen by step times. ``stopped``: whether the
    caller ended the search. ``facts`` and ``words``: JSON values and text in addition to the
    report.
    """

    name: str
    planned: Schedule | None = None
    why_not: str | None = None
    infeasible: InfeasibleError | None = None
    scheme: str = ""
    lower_bound: float | None = None
    bound: str | None = None
    candidates: tuple[Candidate, ...] = ()
    assumed: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    words: str = ""
    step: float | None = None
    stopped: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "scheme", self.scheme or self.name)
        report = self.planned.report if self.planned else None
        if report is not None and self.lower_bound is None:
            object.__setattr__(self, "lower_bound", report.lower_bound)
            object.__setattr__(self, "bound", report.bound)

    @classmethod
    def refused(cls, name: str, error: InputError | InfeasibleError) -> Result:
        """Return the result for a schedule ``name`` that cannot be built, for the reason
        ``error``."""
        if isinstance(error, InfeasibleError):
            return cls(name, infeasible=error)
        faults = (each.words if each.key == name else str(each) for each in error.faults)
        return cls(name, why_not="\n".join(faults))

    @classmethod
    def restored(cls, schedule: Schedule, kept: dict[str, Any]) -> Result:
        """Return the optimizer's result from a cache: it consists of ``schedule`` and ``kept``, the
        former value of :attr:`kept`."""
        candidates = tuple(Candidate(**each) for each in kept["candidates"])
        known = {key: kept[key] for key in KEPT}
        return cls(OPTIMIZER, schedule, candidates=candidates, **known)

    @property
    def kept(self) -> dict[str, Any]:
        """The fields that a cache stores in addition to the schedule, as a JSON object."""
        candidates = [asdict(each) for each in self.candidates]
        return {key: getattr(self, key) for key in KEPT} | {"candidates": candidates}

    @property
    def schedule(self) -> Schedule:
        """The schedule. Must not be used if :attr:`planned` is None."""
        assert self.planned is not None, f"{self.name}: {self.why_not}"
        return self.planned

    @property
    def least_bound(self) -> float | None:
        """Lower bound on the cost of all schedules of all candidates; None if none is known."""
        return least_bound(self.lower_bound, self.candidates)

    @property
    def proven_over_all(self) -> str:
        """``optimal``, or the maximum distance from the optimum over all candidates, in words; ``no
        bound is known`` without a bound."""
        least = self.least_bound
        if least is None:
            return "no bound is known"
        return proven(self.least_status, gap_between(self.objective_cost, least))

    @property
    def least_status(self) -> Status:
        """``optimal`` if no schedule of any candidate can cost less, else ``feasible``."""
        return self._status_under(self.least_bound)

    @property
    def gap(self) -> float | None:
        """(cost - lower bound) / cost, where the cost excludes averaging of gradients; None without
        a lower bound."""
        bound = self.lower_bound
        return None if bound is None else gap_between(self.objective_cost, bound)

    @property
    def status(self) -> str:
        """``optimal`` if no schedule of the chosen candidate can cost less, else ``feasible``;
        without a schedule, ``infeasible`` if memory is lacking, else ``unsupported``."""
        if self.planned is None:
            return "unsupported" if self.infeasible is None else "infeasible"
        return self._status_under(self.lower_bound)

    def _status_under(self, bound: float | None) -> Status:
        return Status.FEASIBLE if bound is None else status_under(bound, self.objective_cost)

    @property
    def method(self) -> str | None:
        """The method that found the order of ops; None if the report does not name it."""
        return self.schedule.report.method if self.schedule.report else None

    @property
    def lower_bound_rate(self) -> float | None:
        """The bubble rate of a schedule with the same total work if its cost were the lower bound;
        None without a lower bound."""
        bound = self.lower_bound
        return 1 - self.timing.work / (self.profile.ranks * bound) if bound else None

    @property
    def refusal(self) -> str:
        """Why there is no schedule, or why it cannot be used; an empty string if there is a
        schedule that can be used."""
        if self.infeasible is None:
            return self.why_not or ""
        error = self.infeasible
        if error.smallest is None:
            return str(error)
        of = " of device memory" if error.device else ""
        size, given = sufficient_size(error.smallest), error.given
        meant = unit_meant(given, error.smallest) if given else ""
        return f"infeasible: needs {size}{of} on rank {error.rank}{meant}"

    @property
    def uncosted(self) -> str | None:
        """Why the cost does not include the transfers of weights; None if the cost includes them,
        or if no weights are transferred."""
        return None if self.planned is None else uncosted(self.planned)

    @property
    def notes(self) -> list[str]:
        """Notes for a reader of the schedule's figures: that gradients are stale or transfers have
        no cost, an assumption about its stages, and that it does not fit."""
        assumed, excess = self.assumed, self.excess()
        found = [transfer_note(self.schedule), assumed and f"assumed: {assumed}"]
        return [*filter(None, found), *([f"does not fit: {excess}"] if excess else [])]

    @cached_property
    def document(self) -> dict[str, Any]:
        """The schedule as a JSON object, as ``optimize -o`` writes it."""
        return dump_schedule(self.schedule)

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``optimize --json`` prints: the report and the candidates."""
        compared = {"candidates": [asdict(one) for one in self.candidates]}
        more = {"least_bound": self.least_bound, "assumed": self.assumed}
        return describe(self.document) | compared | more | self.facts

    def row(self, *, on_cluster: bool = False) -> dict[str, Any]:
        """Return the values of a row in the ``--json`` output of tables.

        ``on_cluster``: whether to add step time, traffic and device memory, for which the schedule
        is compiled.
        """
        head = {"scheme": self.scheme, "schedule": self.name, "status": self.status}
        if self.planned is not None:
            return head | self._figures() | (self._on_cluster() if on_cluster else {})
        return head | (self.infeasible.to_dict() if self.infeasible else {"reason": self.why_not})

    def _figures(self) -> dict[str, Any]:
        report, timing = self.schedule.report, self.timing
        return {key: getattr(self, key) for key in IN_ROWS} | {
            "iteration_time": self.cost,
            "period": timing.period,
            "makespan": timing.makespan,
            "passing": self.passing.value,
            "bubble_rate_period": timing.bubble_rate(Objective.PERIOD),
            "bubble_rate_makespan": timing.bubble_rate(Objective.MAKESPAN),
            "placement": self.schedule.problem.placement.name,
            "solve_seconds": report.solve_seconds if report else None,
            "note": transfer_note(self.schedule),
        }

    def _on_cluster(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in ON_CLUSTER} | {
            "step": self.step_time,
            "traffic": self.traffic.tolist(),
            "wire": None if self.wire is None else asdict(self.wire),
            "memory": asdict(self.memory) | {"total": self.memory.total},
            "over_device_memory": bool(self.over_device_memory),
        }

    def explain(self) -> Explanation:
        """Explain why no schedule is cheaper, and where this one loses time."""
        from .explanation import explain

        return explain(self)

    def certificate(self) -> dict[str, Any]:
        """Return the certificate of a lower bound, as a JSON object that ``verify`` checks
        independently.

        The bound is for the schedule's own problem: it is the one in the report, or a lower one if
        there are no certificates yet for the argument of the reported bound. Raises InputError if
        there is no certificate at all (for fused pairs, and for weight updates after each
        microbatch).
        """
        from .certificate import certificate

        return certificate(self.schedule)

    def __repr__(self) -> str:
        if self.planned is None:
            return f"Result({self.name}: {self.refusal})"
        return (
            f"Result({self.planned!r}, {self.status}, cost {self.cost:.6g} ms, "
            f"lower bound {self.lower_bound or 0.0:.6g} ms)"
        )

    def __str__(self) -> str:
        if self.planned is None:
            return self.refusal
        return "\n\n".join(filter(None, [facts(self.schedule, self.assumed), self.words]))


class NothingFits(InfeasibleError):  # noqa: N818
    """The error that no candidate fits in memory.

    ``what``: a heading such as ``no placement fits`` if the message gives a reason for each
    candidate; empty if it gives a single reason. ``candidates``, ``facts``: as in :class:`Result`.
    """

    def __init__(self, what: str, words: str, candidates: Sequence[Candidate], **more: Any) -> None:
        self.what, self.candidates, self.facts = what, candidates, more.pop("facts", {})
        super().__init__(words, **more)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.what, str(self), self.candidates), self.__dict__

    def to_dict(self) -> dict[str, Any]:
        candidates = [asdict(one) for one in self.candidates]
        facts: dict[str, Any] = {"candidates": candidates} | self.facts
        return super().to_dict() | facts

    @property
    def lines(self) -> Sequence[str]:
        return (*([f"{self.what}:"] if self.what else []), *str(self).splitlines())
