"""Features of a run, by axis, and which pairs of them are incompatible.

A feature is a list of choices on the axes of :mod:`tests.parity.cases`, which the pinned cases use
in turn: ``split`` is ``zb-h1`` in one case and ``zb-h2`` in the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from .cases import ANYWHERE, AXES, ENDS, HUGGING, PIECES, RANDOM, ROUTES, Case

Feature: TypeAlias = tuple[str, str]
Choices: TypeAlias = dict[str, Any]


def each(axis: str, values: Iterable[Any] = ()) -> dict[str, list[Choices]]:
    """Features with one value of the axis each."""
    return {str(value): [{axis: value}] for value in values or dict.fromkeys(AXES[axis])}


def groups(axis: str, **values: Iterable[Any]) -> dict[str, list[Choices]]:
    """Features with several values of the axis each."""
    return {
        name.replace("_", " "): [{axis: value} for value in some] for name, some in values.items()
    }


FEATURES: dict[str, dict[str, list[Choices]]] = {
    "plan": groups(
        "plan",
        fused=("1f1b", "gpipe", "dapple"),
        split=("zb-h1", "zb-h2"),
        chunks=(
            *("interleaved-1f1b:2", "zb-v", "wave:2", "dualpipev", "v-half", "looped-bfs"),
            *("interleaved-1f1b", "v-min", "interleaved-1f1b-grouped", "wave"),
        ),
        any_order=(RANDOM,),
        copies=("chimera", "dualpipe"),
        ring=("weipipe-interleave", "weipipe-naive", "fsdp"),
        ring_split=("wzb2", "wzb1"),
        mixed=(ANYWHERE, ENDS, *ROUTES),
        pipedream=("pipedream",),
    ),
    "mesh": {
        "none": [{}],
        "tensor parallel": [{"tensor parallel": how} for how in ("all", "some")],
        "replicas": [{"replicas": 2}],
        "sharded": [{"replicas": "sharded"}],
        "tensor parallel replicas": [{"tensor parallel": "all", "replicas": 2}],
    },
    "ranks": each("ranks"),
    "model": groups("model", parts=("parts",), hugging=HUGGING),
    "stages_as": groups("stages_as", eager=("eager",), graphs=("aten",)),
    "compiled": groups("compiled", no=("no",), compiled=("whole", "in place", "parts")),
    "tied": {
        "none": [{"tied": "none"}],
        "ends": [{"tied": "ends", "input": "tokens"}],
        "second name": [{"tied": "second name", "input": "tokens"}],
        "more": [{"tied": "middle"}, {"tied": "idle"}],
    },
    "edges": groups(
        "edges",
        plain=("plain",),
        several=("mask", "pair", "unused", "same", "as it came", "detached"),
        odd=("transposed", "number", "nothing", "expanded", "parameter"),
    ),
    "dtype": {
        "float64": [{"dtype": "float64"}],
        "float32": [{"dtype": "float32"}],
        "mixed": [{"dtype": "float64", "param_dtype": "float32"}],
        "reduced": [{"reduce_dtype": "float32"}],
    },
    "remat": groups("remat", none=("none",), R=("R",), O=("O",), some=("some",)),
    "optimizer": groups(
        "optimizer", sgd=("plain", "momentum"), adam=("adamw", "adam"), none=("none",)
    ),
    "frozen": {
        "none": [{"frozen": "none"}],
        "frozen": [{"frozen": "all"}, {"frozen": "some"}, {"all frozen": "some"}],
        "thaws": [{"frozen": "all", "thaws": True}],
    },
    "clip": groups("clip", none=(None,), clipped=(0.05,)),
    "restores": groups("restores", no=("no",), activations=(RANDOM,), weights=(ANYWHERE,)),
    **{
        axis: each(axis)
        for axis in (
            *("skips", "given", "lengths", "loss", "scale_grads", "factor", "rates"),
            *("loss_scale", "overflow", "ahead", "adds_up", "evaluates", "exchange", "memory"),
        )
    },
    **{
        piece: {"none": [{piece: "none"}], "has": [{piece: "all"}, {piece: "some"}]}
        for piece in PIECES
        if piece not in ("frozen", "all frozen")
    },
}


@dataclass(frozen=True)
class Conflict:
    """Incompatible features of two axes, written ``"axis: value, value"``.

    ``line``: a part of the message with which a pipeline refuses both, or None if no such case
    exists.
    """

    one: str
    other: str
    line: str | None = None

    def pairs(self) -> list[tuple[Feature, Feature]]:
        return [(a, b) for a in _features(self.one) for b in _features(self.other)]


def _features(words: str) -> list[Feature]:
    axis, values = words.split(": ")
    return [(axis, value) for value in values.split(", ")]


PLAIN = {axis: next(iter(values)) for axis, values in FEATURES.items()}

PARTS = [axis for axis in PLAIN if axis in {*PIECES, "edges", "skips", "factor", "loss"}]
"""Axes that apply only to the small stages of this test, not to Hugging Face models."""
REFUSALS = (
    "norm_groups: expected the process groups over which parameters are shards",
    "that the backward needs was changed in place since its forward",
)
"""Parts of other messages with which random cases may be refused."""


def _read() -> Iterator[Conflict]:
    for row in Path(__file__).with_name("conflicts.txt").read_text().splitlines():
        features, _, line = row.partition(" | ")
        if row and not row.startswith("#"):
            yield Conflict(*features.split(" x "), line or None)


CONFLICTS = [*_read()]
CONFLICTS += [
    Conflict("model: hugging", f"{axis}: {', '.join([*FEATURES[axis]][1:])}")
    for axis in (*PARTS, "tied", "frozen", "overflow")
]


def conflicting(conflict: Conflict) -> list[Case]:
    """For each pair of features of a conflict, a case with them and defaults otherwise."""
    found = []
    for pair in conflict.pairs():
        more: Choices = {"ranks": 1} if ("mesh", "tensor parallel replicas") in pair else {}
        for axis, value in pair:
            more |= FEATURES[axis][value][0]
        found.append(Case.of(0, 0, more))
    return found


def refused() -> list[tuple[Case, str]]:
    """Cases that are refused, each with a part of the message.

    For each conflict, these are all cases with threads, or one case if all need processes.
    """
    found = []
    for conflict in CONFLICTS:
        cases = conflicting(conflict) if conflict.line is not None else []
        some = [case for case in cases if not case.in_processes] or cases[:1]
        found += [(case, conflict.line or "") for case in some]
    return found


def listed(line: str) -> bool:
    """Whether a refusal is known."""
    known = [conflict.line for conflict in CONFLICTS if conflict.line is not None]
    return any(words in line for words in (*known, *REFUSALS))
