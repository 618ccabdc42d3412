"""The schedules that are compared: of each kind of passing the one predicted to be fastest."""

from __future__ import annotations

from dataclasses import dataclass

from pipeloom.ir.errors import InputError
from pipeloom.ir.profile import Profile
from pipeloom.ir.schedule import Schedule
from pipeloom.solver.families import build_family

from .prediction import predicted


@dataclass(frozen=True, slots=True)
class Candidate:
    """The best schedule of a kind: ``activations``, ``weights``, ``fsdp`` or a hybrid."""

    kind: str
    name: str
    schedule: Schedule


FAMILIES = {
    "activations": ("1f1b", "zb-h1", "zb-h2", "gpipe"),
    "weights": ("weipipe-interleave", "weipipe-naive", "wzb1", "wzb2"),
    "fsdp": ("fsdp:0", "fsdp:1", "fsdp:2", "fsdp:4", "fsdp:8"),
}


def best_of_each(profile: Profile, microbatches: int) -> list[Candidate]:
    """The family of each kind with the least predicted step time."""
    return [_best(kind, profile, microbatches) for kind in FAMILIES]


def _best(kind: str, profile: Profile, microbatches: int) -> Candidate:
    built = []
    for name in FAMILIES[kind]:
        try:
            built.append(Candidate(kind, name, build_family(name, profile, microbatches)))
        except InputError:  # this family cannot be made of so many microbatches
            continue
    return min(built, key=lambda candidate: predicted(candidate.schedule))
