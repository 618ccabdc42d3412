"""The questions for the replay: profiles, and the options with which the optimizer is called for
each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

Document = dict[str, Any]
PARAMETRIZED = ("interleaved-1f1b:3", "looped-bfs:3", "zb-v:3", "wave:2", "fsdp:0")


@dataclass(frozen=True, slots=True)
class Question:
    """A call of ``pipeloom.optimize``, repeated with each seed.

    ``work``: the work limit in millions of simulated ops.
    """

    kind: str
    name: str
    profile: Document
    microbatches: int
    options: dict[str, Any]
    work: float

    @property
    def chosen(self) -> bool:
        cut = "layers" in self.profile and self.options.get("partition", "joint") == "joint"
        return cut or "auto" in self.options.values() or "for_" in self.options


@dataclass(frozen=True, slots=True)
class Family:
    """A family to be built for a profile."""

    family: str
    profile: Document
    microbatches: int
    kind: str = "families"

    @property
    def name(self) -> str:
        return f"{self.kind}: {self.family} P={self.profile['ranks']} M={self.microbatches}"


@cache
def _data() -> dict[str, list[dict[str, Any]]]:
    path = Path(__file__).with_name("questions.json")
    found: dict[str, list[dict[str, Any]]] = json.loads(path.read_text(encoding="utf-8"))
    return found


def questions() -> Iterator[Question]:
    """Yield all questions for the optimizer."""
    for each in _data()["questions"]:
        options = each["options"]
        if slow := options.get("slow"):  # JSON has only strings as keys
            options = options | {"slow": {int(rank): factor for rank, factor in slow.items()}}
        yield Question(**each | {"options": options})


def built(families: Iterable[str]) -> Iterator[Family]:
    """Yield each of ``families`` for each recorded profile."""
    for each in _data()["families"]:
        for family in (*families, *PARAMETRIZED):
            yield Family(family, each["profile"], each["microbatches"])
