"""Names of a pipeline's parameters and buffers in the whole model, independent of the cut.

Stages cut as in torchtitan already use the model's names. For other stages, they are defined by the
pipeline's option ``names``, the model source's optional method ``names(count)`` or the names of its
layers. Of a tied parameter, only the first copy is saved, under the names of all copies; later
copies are loaded from the name of the first one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from pipeloom.ir.errors import InputError, in_brief

from ..rank.options import ModelNames
from ..stages.tie_detection import Group, Member
from ..transport import Transport, agreed, gathered

WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")  # of torch.compile and checkpointing
HOW = "the option names of Pipeline, or the method names of the model source, gives the names"

# maps (stage, name in it) to a pair: the first name in the stage of the same tensor object, and the
# tensor's name in the whole model
_Row = Mapping[Member, tuple[str, str]]


def state_names(
    modules: Mapping[int, nn.Module],
    tied: Sequence[Group],
    names: ModelNames | None,
    transport: Transport,
) -> dict[Member, tuple[str, ...]]:
    """Returns the names in the whole model under which each tensor of this rank is saved.

    Keys are (stage, name in it). The first name of a tensor is the one from which it is loaded and
    to which its optimizer state belongs. ``modules``: this rank's stages. ``tied``: groups of
    (stage, name in it) that are the same parameter. ``names``: see :class:`Pipeline`; None: names
    in the stages. All ranks call it. Raises InputError on all ranks if ``names`` raises or does not
    return a name for a tensor, or if two different tensors get the same name.
    """
    rows = gathered(transport, lambda: _row(modules, names or (lambda _, name: name)))
    merged = {member: pair for row in rows for member, pair in row.items()}
    told = {member: merged[member] for member in sorted(merged, key=lambda member: member[0])}
    leaders = _leaders(told, tied)
    _check_apart(told, leaders)
    every: dict[Member, list[str]] = {}  # first copy -> the names of all copies
    for member, leader in leaders.items():
        every.setdefault(leader, []).append(told[member][1])
    return {
        member: tuple(dict.fromkeys(every[leader][: None if member == leader else 1]))
        for member, leader in leaders.items()
        if member[0] in modules
    }


def unwrapped(name: str) -> str:
    """Returns the name without the parts that wrappers (``torch.compile``, checkpointing) add."""
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def _row(modules: Mapping[int, nn.Module], names: ModelNames) -> _Row:
    """Returns the names of the tensors in the modules' state dicts.

    Raises InputError if ``names`` raises or does not return a name for one of the tensors.
    """
    row: dict[Member, tuple[str, str]] = {}
    for stage, module in modules.items():
        first: dict[int, str] = {}
        for name, value in module.state_dict(keep_vars=True).items():
            same = first.setdefault(id(value), name) if isinstance(value, Tensor) else name
            try:
                found: Any = names(stage, unwrapped(name))
            except Exception as error:
                found = error
            if not (isinstance(found, str) and found):
                got = in_brief(found) if isinstance(found, Exception) else f"got {found!r}"
                raise InputError(
                    f"names: expected a name of the model for stage {stage}, {name}: {got}"
                )
            row[stage, name] = same, found
    return row


def _leaders(told: _Row, tied: Iterable[Group]) -> dict[Member, Member]:
    """Returns, for each (stage, name in it), the (stage, name in it) of the tensor's first copy.

    Copies are the names of one tensor object, and tied parameters. ``told``: the tensors of all
    ranks. ``tied``: groups of tied parameters.
    """
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
            line = (
                f"names: stages {other[0]} and {member[0]} both have {name}: expected a different "
                f"name for each tensor that is saved: {HOW}"
            )
            raise agreed(InputError(line))
