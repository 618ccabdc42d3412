"""The answer of ``optimize``: the schedule, how good it is, and what it was compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pipeloom.ir.errors import InfeasibleError
from pipeloom.ir.model.schedule import OPTIMIZED, Schedule, Status, gap_between
from pipeloom.solver.core.schedule_cost import objective_cost, status_under
from pipeloom.solver.core.stopping import NEVER, StoppingCriterion

from ..solving.search import CachedSearch
from .candidates import Candidate, least_bound

if TYPE_CHECKING:
    from .explanation import Explanation


@dataclass(frozen=True)
class Answer:
    """The best schedule found for a profile under its limits.

    ``cost``: of an iteration by the objective, in milliseconds, averaging over the profile's
    replicas included (``gap`` and ``status``, as the schedule's report, do not count it).
    ``lower_bound``: no schedule of the chosen candidate costs less, of all cuts where the profile
    has layers; the other candidates have bounds of their own. ``step``: where passing was chosen,
    the step time that schemes were compared by. ``stopped``: whether the caller ended the search.
    ``facts`` and ``words``: what is known beyond the report.
    """

    schedule: Schedule
    search: CachedSearch
    cost: float
    lower_bound: float
    candidates: tuple[Candidate, ...]
    stopped: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    words: str = ""
    step: float | None = None

    @classmethod
    def of(
        cls,
        schedule: Schedule,
        search: CachedSearch,
        candidates: tuple[Candidate, ...],
        facts: dict[str, Any] | None = None,
        words: str = "",
    ) -> Answer:
        """An answer whose cost and bound are those of the schedule's report."""
        cost = schedule.known_timing.iteration_time(schedule.problem.objective)
        bound = schedule.known_report.lower_bound or 0.0
        return cls(schedule, search, cost, bound, candidates, search.stopped, facts or {}, words)

    @property
    def least_bound(self) -> float:
        """No schedule of any candidate costs less."""
        return least_bound(self.lower_bound, self.candidates) or 0.0

    @property
    def gap(self) -> float:
        """(cost - lower bound) / cost of the ops, without averaging."""
        return gap_between(objective_cost(self.schedule), self.lower_bound)

    @property
    def method(self) -> str | None:
        """The method that found the order of the schedule."""
        return self.schedule.known_report.method

    @property
    def bound(self) -> str | None:
        """The argument of the schedule's lower bound."""
        return self.schedule.known_report.bound

    @property
    def status(self) -> Status:
        """Optimal where the chosen candidate can have no cheaper schedule."""
        return status_under(self.lower_bound, objective_cost(self.schedule))

    @cached_property
    def document(self) -> dict[str, Any]:
        """The schedule as a JSON object: what ``optimize -o`` writes."""
        from pipeloom.ir.formats import dump_schedule

        return dump_schedule(self.schedule)

    def to_dict(self) -> dict[str, Any]:
        """The object that ``optimize --json`` prints: the report, then what was compared."""
        from pipeloom.report.summaries import describe

        return describe(self.document) | self.facts

    def explain(
        self, seconds: float | None = None, should_stop: StoppingCriterion = NEVER
    ) -> Explanation:
        """Why no schedule is cheaper, where this one loses its time, and what would change that.

        Each change of the problem gets ``seconds`` of the optimizer: by default two, or none where
        the search was stopped.
        """
        from .explanation import EXPLAIN_SECONDS, explain

        system = "for" in self.facts
        fixed = system and self.schedule.known_report.family != OPTIMIZED  # it runs no other order
        if seconds is None:
            time = min(EXPLAIN_SECONDS, self.search.options.time_limit)
            seconds = 0.0 if self.stopped or fixed else time
        return explain(
            self.schedule,
            seconds=seconds,
            should_stop=should_stop,
            step=self.step,
            placements=self.candidates,
            compared="schedule" if system else "placement",
        )

    def certificate(self, should_stop: StoppingCriterion = NEVER) -> dict[str, Any]:
        """The certificate of a lower bound, as a JSON object that ``verify`` checks with code of
        its own: of the schedule's own instance, and at most its report's bound, less where the
        argument of that has no certificate yet. Takes up to ten seconds.

        Raises InputError where there is none: overlap, updates after each microbatch.
        """
        from .certificate import certificate

        return certificate(self.schedule, should_stop)

    def __repr__(self) -> str:
        return (
            f"Answer({self.schedule!r}, {self.status.value}, cost {self.cost:.6g} ms, "
            f"lower bound {self.lower_bound:.6g} ms)"
        )

    def __str__(self) -> str:
        from pipeloom.report.summaries import facts

        known = facts(self.schedule, self.facts.get("choice", {}).get("assumed"))
        return "\n\n".join(part for part in (known, self.words) if part)


class NothingFits(InfeasibleError):  # noqa: N818
    """None of the candidates fits: ``what`` says of which kind they are, the message why each, or
    without ``what`` why none.

    ``facts``: what is known of each, as an answer has it.
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
