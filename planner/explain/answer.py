"""The answer of ``optimize``: the schedule, its lower bound, and what it was compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pipeloom.ir.errors import InfeasibleError
from pipeloom.ir.model.schedule import OPTIMIZED, Schedule, Status, gap_between
from pipeloom.solver.core.schedule_cost import iteration_time, objective_cost, status_under
from pipeloom.solver.core.stopping import NEVER, StoppingCriterion

from ..results.candidates import Candidate, least_bound
from ..solving.search import Search

if TYPE_CHECKING:
    from .explanation import Explanation

KEPT = ("cost", "lower_bound", "facts", "words", "step")
"""The fields of an answer that a cache stores as they are."""


@dataclass(frozen=True)
class Answer:
    """The best schedule found for a profile under its limits.

    ``cost``: time of an iteration by the objective, in milliseconds, including averaging over the
    profile's replicas (which ``gap``, ``status`` and the schedule's report exclude).
    ``lower_bound``: bound on the cost of all schedules of the chosen candidate; if the profile has
    layers, over all cuts. The other candidates have their own bounds. ``step``: if passing was
    chosen, the step time by which schemes were compared. ``stopped``: whether the caller ended the
    search. ``facts`` and ``words``: results that are not in the report.
    """

    schedule: Schedule
    search: Search
    cost: float
    lower_bound: float
    candidates: tuple[Candidate, ...]
    facts: dict[str, Any] = field(default_factory=dict)
    words: str = ""
    step: float | None = None
    stopped: bool = False

    @classmethod
    def of(
        cls, schedule: Schedule, search: Search, candidates: Sequence[Candidate], **more: Any
    ) -> Answer:
        """An answer with the cost of the schedule and, if not given, the bound of its report."""
        known = {"lower_bound": schedule.known_report.lower_bound or 0.0} | more
        cost, stopped = iteration_time(schedule), search.stopped
        return cls(schedule, search, cost, candidates=tuple(candidates), stopped=stopped, **known)

    @classmethod
    def restored(cls, schedule: Schedule, search: Search, kept: dict[str, Any]) -> Answer:
        """The answer with the facts :attr:`kept`."""
        candidates = tuple(Candidate(**each) for each in kept["candidates"])
        return cls(schedule, search, candidates=candidates, **{key: kept[key] for key in KEPT})

    @property
    def kept(self) -> dict[str, Any]:
        """All but the schedule and the search, as a JSON object."""
        candidates = [asdict(each) for each in self.candidates]
        return {key: getattr(self, key) for key in KEPT} | {"candidates": candidates}

    @property
    def least_bound(self) -> float:
        """Lower bound on the cost of all schedules of all candidates."""
        return least_bound(self.lower_bound, self.candidates) or 0.0

    @property
    def gap(self) -> float:
        """(cost - lower bound) / cost, without averaging."""
        return gap_between(objective_cost(self.schedule), self.lower_bound)

    @property
    def method(self) -> str | None:
        """The method that found the schedule's order of ops."""
        return self.schedule.known_report.method

    @property
    def bound(self) -> str | None:
        """The name of the argument behind the schedule's lower bound."""
        return self.schedule.known_report.bound

    @property
    def status(self) -> Status:
        """Optimal if no schedule of the chosen candidate costs less."""
        return status_under(self.lower_bound, objective_cost(self.schedule))

    @property
    def assumed(self) -> str | None:
        """How stages were cut for the schedule, in words; None if they were not."""
        found: str | None = self.facts.get("choice", {}).get("assumed")
        return found

    @cached_property
    def document(self) -> dict[str, Any]:
        """The schedule as a JSON object, as ``optimize -o`` writes it."""
        from pipeloom.ir.formats import dump_schedule

        return dump_schedule(self.schedule)

    def to_dict(self) -> dict[str, Any]:
        """The object that ``optimize --json`` prints: the report, then the candidates."""
        from pipeloom.report.summaries import describe

        return describe(self.document) | self.facts

    def explain(
        self, seconds: float | None = None, should_stop: StoppingCriterion = NEVER
    ) -> Explanation:
        """Explain why no schedule is cheaper, where this one loses time, and what would change
        that.

        The optimizer gets ``seconds`` for each change of the problem: two by default, none if the
        search was stopped.
        """
        from .explanation import EXPLAIN_SECONDS, explain

        # a system's own schedule has no other order
        fixed = "for" in self.facts and self.schedule.known_report.family != OPTIMIZED
        if seconds is None:
            time = min(EXPLAIN_SECONDS, self.search.options.time_limit)
            seconds = 0.0 if self.stopped or fixed else time
        return explain(self, seconds=seconds, should_stop=should_stop)

    def certificate(self) -> dict[str, Any]:
        """The certificate of a lower bound, as a JSON object that ``verify`` checks independently.

        It certifies a bound for the schedule's own problem: the report's, or a lower one if that
        one's argument has no certificate yet. Raises InputError if there is none (fused pairs,
        weight updates after each microbatch).
        """
        from .certificate import certificate

        return certificate(self.schedule)

    def __repr__(self) -> str:
        return (
            f"Answer({self.schedule!r}, {self.status.value}, cost {self.cost:.6g} ms, "
            f"lower bound {self.lower_bound:.6g} ms)"
        )

    def __str__(self) -> str:
        from pipeloom.report.summaries import facts

        return "\n\n".join(filter(None, [facts(self.schedule, self.assumed), self.words]))


class NothingFits(InfeasibleError):  # noqa: N818
    """No candidate fits. ``what``: their kind; the message has the reason for each, or a single one
    if ``what`` is empty.

    ``facts``: the facts on each, as in an answer.
    """

    def __init__(self, what: str, words: str, facts: dict[str, Any], **least: Any) -> None:
        super().__init__(words, **least)
        self.what, self.facts = what, facts

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.what, str(self), self.facts), self.__dict__

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | self.facts

    @property
    def lines(self) -> Sequence[str]:
        return (*([f"{self.what}:"] if self.what else []), *str(self).splitlines())
