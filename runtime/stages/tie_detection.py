"""Parameters that stages share, whether or not anybody said so.

A rank sees one object in several stages. Of stages that other ranks have it sees where their
parameter was registered, where a function makes the whole model and returns a part
(:func:`registering`). Of one parameter that has several places each stage keeps others, and all
ranks name the places alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, combinations
from typing import Any, TypeAlias, TypeVar
from weakref import ref

from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils.weak import WeakTensorKeyDictionary

from pipeloom.ir.errors import InputError

Member: TypeAlias = tuple[int, str]
Group = Sequence[Member]
_Joined = TypeVar("_Joined", Member, int)


def stages_of(group: Group) -> tuple[int, ...]:
    """The stages of a group's parameters, each once, ascending."""
    return tuple(sorted({stage for stage, _ in group}))


def ranks_of(stages: Sequence[int], holders: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The ranks that hold any of the stages, ascending."""
    return tuple(sorted({rank for stage in stages for rank in holders[stage]}))


def tied_stages(tied: Iterable[Group]) -> list[tuple[int, ...]]:
    """The groups of stages that share parameters, ascending."""
    return sorted({stages for stages in map(stages_of, tied) if len(stages) > 1})


_Registered: TypeAlias = "list[tuple[ref[nn.Module], str, ref[nn.Parameter]]]"
# of parameters that were registered outside of their stage, too: their places in the whole model,
# every one the same on all ranks, and those that their stage kept
_MADE: Any = WeakTensorKeyDictionary()


@contextmanager
def registering() -> Iterator[_Registered]:
    """The parameters that are registered in modules, in order; none is kept alive by it."""
    registered: _Registered = []

    def note(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None:
            place = f"{type(module).__qualname__}.{name}"
            registered.append((ref(module), place, ref(parameter)))

    hook = register_module_parameter_registration_hook(note)
    try:
        yield registered
    finally:
        hook.remove()


def remember(module: nn.Module, registered: _Registered) -> None:
    """Keeps the places of a new stage's parameters that its function registered elsewhere, too: a
    place is the number of the registration, of how many, and what was registered."""
    inside = {(id(m), id(p)) for m in module.modules() for p in m.parameters(recurse=False)}
    every: defaultdict[int, list[Hashable]] = defaultdict(list)
    kept: defaultdict[int, list[Hashable]] = defaultdict(list)
    for at, (owner, name, parameter) in enumerate(registered):
        key, place = id(parameter()), (at, len(registered), name)
        every[key].append(place)
        if (id(owner()), key) in inside:
            kept[key].append(place)
    for p in module.parameters():
        if 0 < len(kept[id(p)]) < len(every[id(p)]) and p not in _MADE:
            _MADE[p] = tuple(every[id(p)]), tuple(kept[id(p)])


# of parameters that stand outside of their stage, too: every place and those kept, and their shapes
_Standing: TypeAlias = dict[Member, tuple[Any, ...]]


def find_ties(
    tied: Sequence[Group],
    count: int,
    given: Mapping[int, nn.Module],
    own: Mapping[int, nn.Module],
    gather: Callable[[Any], list[Any]],
) -> list[list[Member]]:
    """Groups of (stage, parameter name) that are one: ``tied``, and what any rank sees besides.

    ``given``: the modules that this rank has of any of the ``count`` stages; ``own``: those of the
    stages that it needs; ``gather(value)``: what each rank passed, so that all have the same
    groups.

    Raises InputError for a stage that does not exist.
    """
    for group in tied:
        if not all(0 <= stage < count for stage, _ in group):
            raise InputError(f"tied: expected stages of 0..{count - 1}, got {list(group)}")
    told = {(s, name) for group in tied for s, name in group}
    seen, places = zip(*gather(_seen(_named(given, told), own)), strict=True)
    named = [[(stage, name) for stage, name in group] for group in tied]
    return joined([*named, *chain(*seen), *_matching(places)])


def _named(
    modules: Mapping[int, nn.Module], told: Collection[Member]
) -> list[tuple[Member, nn.Parameter]]:
    """Each stage's parameters once, by the name that was ``told`` of them or else their first."""
    found: dict[tuple[int, int], tuple[Member, nn.Parameter]] = {}
    for s, module in sorted(modules.items()):
        for name, parameter in module.named_parameters(remove_duplicate=False):
            member, key = (s, name), (s, id(parameter))
            if member in told or key not in found:
                found[key] = member, parameter
    return list(found.values())


def _seen(
    named: Sequence[tuple[Member, nn.Parameter]], own: Mapping[int, nn.Module]
) -> tuple[Any, ...]:
    """Groups of parameters that are one object on this rank, and its :data:`_Standing` ones."""
    objects: dict[int, list[Member]] = {}
    for member, parameter in named:
        objects.setdefault(id(parameter), []).append(member)
    mine = [(member, parameter) for member, parameter in named if member[0] in own]
    standing = ((m, _MADE.get(p), tuple(p.shape)) for m, p in mine)
    return (
        [group for group in objects.values() if len(group) > 1],
        {m: (*places, shape) for m, places, shape in standing if places is not None},
    )


def _matching(rows: Iterable[_Standing]) -> list[list[Member]]:
    """Parameters that stand in the same places, of which each stage kept others."""
    alike: dict[Hashable, dict[Member, tuple[Hashable, ...]]] = {}
    for member, (every, kept, shape) in (item for row in rows for item in row.items()):
        alike.setdefault((every, shape), {})[member] = kept
    return [
        list(group)
        for group in alike.values()
        if all(not set(a) & set(b) for a, b in combinations(group.values(), 2))
    ]


def joined(groups: Iterable[Iterable[_Joined]]) -> list[list[_Joined]]:
    """The groups with those that share a member made one; each ascending, and all of them."""
    apart: list[set[_Joined]] = []
    for group in map(set, groups):
        common = [other for other in apart if other & group]
        apart = [other for other in apart if not other & group]
        apart.append(group.union(*common))
    return sorted(map(sorted, apart))
