"""Detects parameters that stages share, whether or not the caller named them.

If several stages of this rank contain the same object, they share it. For stages on other ranks, a
function may create the whole model and return a part of it. Then :func:`registering` records all
places where a parameter was registered. If each of several stages keeps another one of these
places, they share the parameter; places have the same names on all ranks.
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
    """Returns the distinct stages of a group's parameters, ascending."""
    return tuple(sorted({stage for stage, _ in group}))


def ranks_of(stages: Sequence[int], holders: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Returns the ranks that hold any of the stages, ascending."""
    return tuple(sorted({rank for stage in stages for rank in holders[stage]}))


def tied_stages(tied: Iterable[Group]) -> list[tuple[int, ...]]:
    """Returns the groups of stages that share parameters, ascending."""
    return sorted({stages for stages in map(stages_of, tied) if len(stages) > 1})


_Registered: TypeAlias = "list[tuple[ref[nn.Module], str, ref[nn.Parameter]]]"
# for parameters that were also registered outside of their stage: all places in the whole model,
# which have the same names on all ranks, and the places inside the stage
_MADE: Any = WeakTensorKeyDictionary()


@contextmanager
def registering() -> Iterator[_Registered]:
    """A context that records the parameters registered in modules, in order, as weak references."""
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
    """Records the places of a new stage's parameters that were also registered elsewhere.

    A place is the number of the registration, the count of registrations, and the parameter's class
    and name.
    """
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


# parameters also registered outside of their stage: all places, places inside, shape
_Standing: TypeAlias = dict[Member, tuple[Any, ...]]


def find_ties(
    tied: Sequence[Group],
    count: int,
    given: Mapping[int, nn.Module],
    own: Mapping[int, nn.Module],
    gather: Callable[[Any], list[Any]],
) -> list[list[Member]]:
    """Returns groups of (stage, parameter name) that are one: ``tied``, and those any rank finds.

    ``given``: the modules that this rank has of any of the ``count`` stages. ``own``: those of the
    stages that it needs. ``gather(value)`` returns the values of all ranks, so that all find the
    same groups. Raises InputError for a stage that does not exist.
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
    """Returns each stage's distinct parameters, by the name in ``told`` or their first name."""
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
    """Returns groups of parameters that are one object on this rank, and its :data:`_Standing`."""
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
    """Returns groups of parameters with the same places, of which each stage contains others."""
    alike: dict[Hashable, dict[Member, tuple[Hashable, ...]]] = {}
    for member, (every, kept, shape) in (item for row in rows for item in row.items()):
        alike.setdefault((every, shape), {})[member] = kept
    return [
        list(group)
        for group in alike.values()
        if all(not set(a) & set(b) for a, b in combinations(group.values(), 2))
    ]


def joined(groups: Iterable[Iterable[_Joined]]) -> list[list[_Joined]]:
    """Merges groups that share a member; members and groups are sorted."""
    apart: list[set[_Joined]] = []
    for group in map(set, groups):
        common = [other for other in apart if other & group]
        apart = [other for other in apart if not other & group]
        apart.append(group.union(*common))
    return sorted(map(sorted, apart))
