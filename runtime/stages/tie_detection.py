"""Detects tied parameters: those that several stages share, even if the caller did not name them.

If several stages of this rank contain the same object, they share it. For stages on other ranks, a
function may create the whole model and return a part of it. Then :func:`registering` records all
*places* where a parameter was registered in a module. A parameter with several places is shared by
the stages that keep different ones of these places. As all ranks create the same model, a place has
the same name on all ranks.
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

Member: TypeAlias = tuple[int, str]  # stage, name of a parameter in it
Group = Sequence[Member]  # names of one parameter
_Joined = TypeVar("_Joined", Member, int)


def stages_of(group: Group) -> tuple[int, ...]:
    """Returns the distinct stages in which the parameters of a group are, ascending."""
    return tuple(sorted({stage for stage, _ in group}))


def ranks_of(stages: Sequence[int], holders: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Returns the ranks that own at least one of ``stages``, ascending.

    ``holders``: for each stage of the program, the ranks that own it.
    """
    return tuple(sorted({rank for stage in stages for rank in holders[stage]}))


def tied_stages(tied: Iterable[Group]) -> list[tuple[int, ...]]:
    """Returns the tuples of several stages that share a parameter, each tuple once, sorted.

    ``tied``: groups of tied parameters. The stages in a tuple are ascending.
    """
    return sorted({stages for stages in map(stages_of, tied) if len(stages) > 1})


_Registered: TypeAlias = "list[tuple[ref[nn.Module], str, ref[nn.Parameter]]]"
# parameter that was also registered outside of its stage -> (its places in the whole model, its
# places inside the stage)
_MADE: Any = WeakTensorKeyDictionary()


@contextmanager
def registering() -> Iterator[_Registered]:
    """A context that records in which modules parameters are registered.

    The list that it yields contains (module, class and name, parameter) for each registration, in
    order; module and parameter are weak references.
    """
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
    """Records the places of those parameters of a new stage that were also registered elsewhere.

    ``module``: the stage. ``registered``: the registrations while ``module`` was created. A place
    consists of the index of the registration (from 0), the number of all registrations, the class
    of the module and the name of the parameter in it.
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


# parameter also registered outside of its stage -> (all its places, places inside, shape)
_Standing: TypeAlias = dict[Member, tuple[Any, ...]]


def find_ties(
    tied: Sequence[Group],
    count: int,
    given: Mapping[int, nn.Module],
    own: Mapping[int, nn.Module],
    gather: Callable[[Any], list[Any]],
) -> list[list[Member]]:
    """Returns groups of tied parameters as (stage, parameter name), the same on all ranks.

    These are the groups ``tied`` that the caller named, and those that any rank detects; groups
    with a common parameter are merged. ``count``: the number of stages. ``given``: all modules that
    exist on this rank, by stage. ``own``: the modules of those stages that this rank needs.
    ``gather(value)`` returns the values of all ranks. Raises InputError for a stage in ``tied``
    that does not exist.
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
    """Returns each stage's distinct parameters as pairs of (stage, name) and parameter.

    If a parameter has several names in its stage, the one in ``told`` is used, or else the first.
    ``told``: the (stage, name) of parameters that the caller named as tied.
    """
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
    """Returns a pair: the groups of parameters that are one object on this rank, and places.

    The places are a dict (:data:`_Standing`) for those parameters of the ``own`` stages that were
    registered both in their stage and outside of it. ``named``: the result of :func:`_named`.
    """
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
    """Returns groups of tied parameters of different stages, which are recognized by their places.

    Parameters form a group if they were registered in the same places and no two of them kept the
    same place. ``rows``: for each rank, its parameters with their places.
    """
    alike: dict[Hashable, dict[Member, tuple[Hashable, ...]]] = {}
    for member, (every, kept, shape) in (item for row in rows for item in row.items()):
        alike.setdefault((every, shape), {})[member] = kept
    return [
        list(group)
        for group in alike.values()
        if all(not set(a) & set(b) for a, b in combinations(group.values(), 2))
    ]


def joined(groups: Iterable[Iterable[_Joined]]) -> list[list[_Joined]]:
    """Merges groups that have a common member; returns sorted groups, in sorted order."""
    apart: list[set[_Joined]] = []
    for group in map(set, groups):
        common = [other for other in apart if other & group]
        apart = [other for other in apart if not other & group]
        apart.append(group.union(*common))
    return sorted(map(sorted, apart))
