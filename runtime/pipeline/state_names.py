"""Names of a pipeline's parameters and buffers in the whole model, however it is cut.

Stages cut as torchtitan does keep the model's names. Of others the pipeline's ``names`` says them,
or the model source: by an optional method ``names(count)``, or as its layers are named. A tied
parameter is saved as its first copy, under all its names; its later copies know the first one's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from pipeloom.ir.errors import InputError, in_brief
from pipeloom.ir.model.layers import Layer

from ..rank.model_names import unwrapped
from ..rank.options import ModelNames
from ..stages.tie_detection import Group, Member

HOW = "Pipeline's option names, or the model source's method names(count), says the model's names"

# of a (stage, name in it): the first name of the same tensor in the stage, and the model's name
_Row = Mapping[Member, tuple[str, str]]


def state_names(
    modules: Mapping[int, nn.Module],
    tied: Sequence[Group],
    names: ModelNames | None,
    gather: Callable[[Any], list[Any]],
) -> dict[Member, tuple[str, ...]]:
    """The model's names under which each tensor of ``modules`` is saved, by stage and name there.

    The first is that which is loaded, and has the optimizer's state. ``tied``: groups of (stage,
    name) that are one; ``gather(value)``: what each rank passed, so that all find the same. Raises
    InputError, alike on all ranks, where two that are not one have one name.
    """
    rows: list[_Row | str] = gather(_row(modules, names or (lambda _, name: name)))
    wrong = next((row for row in rows if isinstance(row, str)), None)
    if wrong is not None:
        raise InputError(wrong)
    merged: dict[Member, tuple[str, str]] = {}
    for row in rows:
        assert not isinstance(row, str)
        merged |= row
    told = {member: merged[member] for member in sorted(merged, key=lambda member: member[0])}
    leaders = _leaders(told, tied)
    _check_apart(told, leaders)
    saved = _saved_as(told, leaders)
    return {member: saved[member] for member in saved if member[0] in modules}


def layer_names(
    parts: Sequence[Sequence[str]], layers: Mapping[str, Layer], own: Any = None
) -> ModelNames:
    """Names of stages that are rows of layers: those of their modules, by :func:`layer_name`.

    ``own``: the model source's ``layer_names()``, a function of layer and name in it, if it has
    one.
    """

    name_of = own or layer_name

    def named(stage: int, name: str) -> str:
        at, _, rest = name.partition(".")
        layer = parts[stage][int(at)]
        return str(name_of(layers[layer], rest))

    return named


def layer_name(layer: Layer, name: str) -> str:
    """``name`` in the layer as the model has it: under its module; of several under the one of the
    child's place, as in ``nn.Sequential``; without modules, under the layer's own name."""
    if len(layer.modules) == 1:
        return f"{layer.modules[0]}.{name}"
    child, _, rest = name.partition(".")
    if child.isdecimal() and int(child) < len(layer.modules):
        return f"{layer.modules[int(child)]}.{rest}"
    return f"{layer.name}.{name}"


def _row(modules: Mapping[int, nn.Module], names: ModelNames) -> _Row | str:
    """The names of this rank's tensors; a line on one that has none."""
    row: dict[Member, tuple[str, str]] = {}
    for stage, module in modules.items():
        first: dict[int, str] = {}
        for name, value in module.state_dict(keep_vars=True).items():
            same = first.setdefault(id(value), name) if isinstance(value, Tensor) else name
            try:
                told: Any = names(stage, unwrapped(name))
            except Exception as error:
                words = in_brief(error)
                return f"names: no name of the model for stage {stage}, {name}: {words}"
            if not (isinstance(told, str) and told):
                return (
                    f"names: expected a name of the model for stage {stage}, {name}, got {told!r}"
                )
            row[stage, name] = same, told
    return row


def _leaders(told: _Row, tied: Iterable[Group]) -> dict[Member, Member]:
    """The first copy of each tensor."""
    leaders = {(stage, name): (stage, same) for (stage, name), (same, _) in told.items()}
    order = {member: place for place, member in enumerate(told)}
    plain = {(stage, unwrapped(name)): (stage, name) for stage, name in told}
    for group in tied:
        firsts = {leaders[plain[stage, unwrapped(name)]] for stage, name in group}
        least = min(firsts, key=order.__getitem__)
        leaders |= {member: least for member, first in leaders.items() if first in firsts}
    return leaders


def _check_apart(told: _Row, leaders: Mapping[Member, Member]) -> None:
    seen: dict[str, Member] = {}
    for member, (_, name) in told.items():
        other = seen.setdefault(name, member)
        if leaders[other] != leaders[member]:
            raise InputError(
                f"names: {name} is called so in stage {other[0]} and in stage {member[0]}: "
                f"expected different names of what is saved: {HOW}"
            )


def _saved_as(told: _Row, leaders: Mapping[Member, Member]) -> dict[Member, tuple[str, ...]]:
    """The names of each tensor, its first copy's before others; a first copy has all later
    stages'."""
    later: dict[Member, list[str]] = {}
    for member, leader in leaders.items():
        if member[0] != leader[0]:
            later.setdefault(leader, []).append(told[member][1])
    saved = {}
    for member, leader in leaders.items():
        others = later.get(member, ()) if member[0] == leader[0] else ()
        own = (told[member][1],) if member[0] == leader[0] else ()
        saved[member] = tuple(dict.fromkeys([told[leader][1], *own, *others]))
    return saved
