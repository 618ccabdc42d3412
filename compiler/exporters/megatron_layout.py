"""Megatron's pipeline layout, for ``--pipeline-model-parallel-layout``.

::

    Et*3|t*4|t*4|t*2L     one part a stage: E embedding, t block, m multi-token prediction, L loss

``t*3`` are three of them. Megatron puts part s on rank s mod P. Its L is all that comes after the
last block: final norm, output and loss. https://github.com/NVIDIA/Megatron-LM, "Custom Pipeline
Model Parallel Layout".
"""

from __future__ import annotations

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
_ONCE = "EL"
"""One of them stands for all the layers that it means."""


def write(schedule: Schedule) -> str:
    """The layout in one line. Raises InputError where Megatron has none for these stages."""
    parts = named_parts(schedule, "megatron-layout")
    _check_placement(schedule)
    _check_order(parts)
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
            "interleaved:K), "
            f"got stages on ranks {list(owners)}"
        )


def _check_order(parts: list[tuple[Layer, ...]]) -> None:
    """E's alone first and in one stage, L's alone last and in one stage, m's behind all t's."""
    letters = [
        (_LETTERS[layer.kind], number, layer.name)
        for number, layers in enumerate(parts)
        for layer in layers
    ]
    order = {"E": 0, "t": 1, "m": 2, "L": 3}
    for (before, _, _), (letter, number, name) in pairwise(letters):
        if order[letter] < order[before]:
            raise InputError(
                f"profile: stages[{number}]: layers: {name}: megatron-layout expects embedding, "
                "blocks, "
                f"mtp, head and loss in this order"
            )
    for letter, what, where in (("E", "an embedding", 0), ("L", "a head or loss", len(parts) - 1)):
        stages = {number for found, number, _ in letters if found == letter}
        if stages != {where}:
            got = ", ".join(f"stage {stage}" for stage in sorted(stages)) or "none"
            raise InputError(
                f"profile: stages: layers: megatron-layout expects {what} in stage {where} alone, "
                f"got {got}"
            )
