"""The schedules that are compared: of each scheme the one that ``--passing auto`` finds best."""

from __future__ import annotations

from dataclasses import dataclass

from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.planner.passing.choose import choose, searching

SECONDS = 20.0  # that the optimizer has for all schemes together


@dataclass(frozen=True, slots=True)
class Candidate:
    """The best schedule of a scheme: ``activations``, ``weights``, ``fsdp`` or islands of both."""

    scheme: str
    family: str
    schedule: Schedule


def best_of_each(profile: Profile, microbatches: int) -> list[Candidate]:
    """One candidate a scheme, first the one that ``optimize --passing auto`` picks."""
    choice = choose(profile, microbatches, search=searching(SECONDS))
    return [Candidate(one.scheme, one.family, one.schedule) for one in choice.usable]
