"""Megatron's pipeline layout, for ``--pipeline-model-parallel-layout``.

::

    Et*3|t*4|t*4|t*2L     one part a stage: E embedding, t block, m multi-token prediction, L loss

``t*3`` are three of them, ``(tt|)*2`` is that part twice, and commas mean nothing. Megatron puts
part s on rank s mod P. Its L is all that comes after the
last block: final norm, output and loss. https://github.com/NVIDIA/Megatron-LM, "Custom Pipeline
Model Parallel Layout".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate, groupby, pairwise

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.layered_profile import LayeredProfile
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


def read_parts(text: str, where: str) -> list[str]:
    """The letters of each stage, ``["Ett", "tt", "tL"]``. Raises InputError for anything else."""
    plain = "".join(text.split()).replace(",", "")
    for repeated in (r"\(([^()]+)\)\*([0-9]{1,4})", r"([EtmL|])\*([0-9]{1,4})"):
        plain = re.sub(repeated, lambda found: found[1] * int(found[2]), plain)
    wrong = re.search(r"[^EtmL|]", plain)
    if wrong is not None or not plain:
        raise InputError(
            f"{where}: expected letters E, t, m and L, | between stages, and *N or (...)*N, got "
            f"{wrong[0] if wrong else 'nothing'!r}"
        )
    return plain.split("|")


def cut_of(parts: Sequence[str], profile: LayeredProfile, where: str) -> tuple[int, ...]:
    """The first layer of each stage, of parts from :func:`read_parts`.

    Raises InputError where the profile, which the layout ``where`` is read for, has other layers,
    or layers that it does not let be cut apart.
    """
    letters = [_LETTERS[stage.layers[0].kind] for stage in profile.layers]
    # one E, one L for as many layers as they mean
    runs = [(letter, len(list(run))) for letter, run in groupby(letters)]
    mine = "".join(letter if letter in _ONCE else letter * number for letter, number in runs)
    if "".join(parts) != mine:
        raise InputError(
            f"{where}: expected the profile's layers in order, {_brief(mine)}, got "
            f"{_brief(''.join(parts))}"
        )
    several = dict(run for run in runs if run[0] in _ONCE)
    sizes = [sum(several.get(letter, 1) for letter in part) for part in parts]
    empty = next((number for number, size in enumerate(sizes) if not size), None)
    if empty is not None:
        raise InputError(f"{where}: stage {empty}: expected layers, got none")
    cut = tuple(accumulate(sizes[:-1], initial=0))
    for start in cut[1:]:
        if profile.tied[start - 1]:
            name = profile.layers[start].layers[0].name
            raise InputError(
                f"{where}: {name}: begins a stage, but the profile's with_next keeps it with the "
                "layer before it"
            )
    return cut


def _brief(letters: str) -> str:
    """``Et*6L``"""
    runs = ((letter, len(list(run))) for letter, run in groupby(letters))
    return "".join(x if n == 1 else f"{x}*{n}" for x, n in runs) or "nothing"


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
