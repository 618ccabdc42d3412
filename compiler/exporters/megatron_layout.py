"""Megatron's pipeline layout, for ``--pipeline-model-parallel-layout``.

::

    Et*3|t*4|t*4|t*2L     one part per stage: E embedding, t block, m multi-token prediction, L loss

``t*3`` is ``ttt``. Megatron puts part s on rank s mod P. L stands for everything after the last
block: norm, output and loss. See "Custom Pipeline Model Parallel Layout" in
https://github.com/NVIDIA/Megatron-LM.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.layers import Layer, LayerKind
from pipeloom.ir.model.schedule import Schedule

from .stage_layers import named_parts

_LETTERS = {
    LayerKind.EMBEDDING: "E",
    LayerKind.BLOCK: "t",
    LayerKind.MTP: "m",
    LayerKind.HEAD: "L",
    LayerKind.LOSS: "L",
}
_ORDER = "EtmL"
_ENDS = {"E": "an embedding", "L": "a head or loss"}
_ONCE = "EL"
"""Letters that stand for all consecutive layers of their kind, and are therefore written once."""


def write(schedule: Schedule) -> str:
    """The schedule's layout as one line of text.

    Raises InputError if Megatron has no layout for these stages.
    """
    parts = named_parts(schedule, "megatron-layout")
    _check_placement(schedule)
    check_layers([layer for part in parts for layer in part], "profile: stages: layers")
    _check_ends(parts)
    return "|".join(map(_part, parts)) + "\n"


def _part(layers: tuple[Layer, ...]) -> str:
    words = []
    for letter, run in groupby(_LETTERS[layer.kind] for layer in layers):
        number = 1 if letter in _ONCE else len(list(run))
        words.append(letter if number == 1 else f"{letter}*{number}")
    return "".join(words)


def _check_placement(schedule: Schedule) -> None:
    owners, ranks = schedule.problem.placement.owners, schedule.problem.ranks
    if list(owners) != [stage % ranks for stage in range(len(owners))] or len(owners) % ranks:
        raise InputError(
            "schedule: order: megatron-layout has stage s on rank s mod P (linear or "
            f"interleaved:K), got stages on ranks {list(owners)}"
        )


def check_layers(layers: Sequence[Layer], where: str) -> None:
    """Raise InputError, prefixed by ``where``, if no layout can have the layers in this order."""
    for before, layer in pairwise(layers):
        if _ORDER.index(_LETTERS[layer.kind]) < _ORDER.index(_LETTERS[before.kind]):
            raise InputError(
                f"{where}: {layer.name}: megatron-layout expects embedding, blocks, mtp, head and "
                "loss in this order"
            )
    there = {_LETTERS[layer.kind] for layer in layers}
    for letter, what in _ENDS.items():
        if letter not in there:
            raise InputError(f"{where}: megatron-layout expects {what}, got none")


def _check_ends(parts: list[tuple[Layer, ...]]) -> None:
    """Raise InputError unless every E is in the first stage and every L is in the last one."""
    for (letter, what), where in zip(_ENDS.items(), (0, len(parts) - 1), strict=True):
        stages = [n for n, part in enumerate(parts) for x in part if _LETTERS[x.kind] == letter]
        if set(stages) != {where}:
            got = ", ".join(f"stage {stage}" for stage in sorted({*stages}))
            raise InputError(
                f"profile: stages: layers: megatron-layout expects {what} only in stage {where}, "
                f"got {got}"
            )
