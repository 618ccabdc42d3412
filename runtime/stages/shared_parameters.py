"""Parameters of which there are several copies: one start, one gradient."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from pipeloom.ir.errors import InputError

from ..transport import Transport
from ..transport.in_process import here
from .store import Making, StageStore, making_of

Member: TypeAlias = tuple[int, str]
Group = Sequence[Member]


class SharedParameters:
    """What has copies: parameters tied between stages, and those of replicated stages.

    ``tied``: groups of (stage, parameter name) that are one parameter; ``holders``: the ranks that
    have each stage for good, several where it is replicated; ``reduced``: the stages of each of the
    program's reductions, of which the smallest that has all stages of a group sums it. The copies
    start as the first one, get the same summed gradient, and so stay equal under any optimizer that
    treats a parameter by itself. ``reduce_dtype``: that in which gradients are summed over ranks;
    by default their own.

    Where gradients add up over steps, a sum is of what the step has added: what was there when it
    began, which earlier sums have made equal, is put aside (not copied) until then.
    """

    def __init__(
        self,
        tied: Sequence[Group],
        holders: Sequence[Sequence[int]],
        store: StageStore,
        transport: Transport,
        *,
        reduced: Collection[tuple[int, ...]],
        reduce_dtype: torch.dtype | None = None,
    ) -> None:
        self._dtype = reduce_dtype
        self._holders = holders
        self._store = store
        self._transport = transport
        self._reductions = reduced
        groups = self._groups = [g for g in map(sorted, map(set, tied)) if self._over_stages(g)]
        elsewhere = {member for group in groups for member in group}
        for group in groups:
            self._start_equal(group)
        self._shared = {
            stages: [self._copies(group) for group in groups if stages_of(group) == stages]
            for stages in {stages_of(group) for group in groups}
        }
        for stage, ranks in enumerate(holders):
            if len(ranks) > 1:
                self._shared[stage,] = self._replicas(stage, elsewhere)
        self._reduced: dict[int, nn.Parameter] = {}  # what reductions sum, by id
        self._earlier: dict[int, tuple[nn.Parameter, Tensor]] = {}

    def begin(self) -> None:
        """Before anything is added to the gradients in a step, which starts with none."""
        self.restore()  # after a step that failed
        for parameter in self._reduced.values():
            if parameter.grad is not None:
                self._earlier[id(parameter)] = parameter, parameter.grad
                parameter.grad = None

    def restore(self) -> None:
        """What is still put aside is in the gradients again, as after a step that failed."""
        for parameter, _ in list(self._earlier.values()):
            self._add_earlier(parameter)

    def reduction(self, stages: tuple[int, ...]) -> Callable[[], None]:
        """The call of a program's reduction: sums the gradients of what these stages share."""
        within = [shared for shared in sorted(self._shared) if set(shared) <= set(stages)]
        if not within:
            raise InputError(
                f"program: reduce {' '.join(map(str, stages))}: no parameter is tied between "
                "these stages"
            )
        calls = [self._reduction(shared) for shared in within if self._reduced_by(shared) == stages]

        def reduce() -> None:
            for call in calls:
                call()

        return reduce

    def _reduced_by(self, shared: tuple[int, ...]) -> tuple[int, ...]:
        covering = (r for r in self._reductions if set(shared) <= set(r))
        return min(covering, key=lambda r: (len(r), r))

    def _reduction(self, stages: tuple[int, ...]) -> Callable[[], None]:
        """The sum of what exactly these stages share, over the ranks that have them."""
        ranks = ranks_of(stages, self._holders)
        if self._transport.rank not in ranks:
            return lambda: None
        trained = [copies for copies in self._shared[stages] if copies[0].requires_grad]
        self._reduced |= {id(copy): copy for copies in trained for copy in copies}

        @torch.no_grad()
        def reduce() -> None:
            totals = [_total(copies) for copies in trained]
            if len(ranks) > 1 and totals:
                self._sum(totals, ranks)
            for copies, total in zip(trained, totals, strict=True):
                copies[0].grad = total
                for copy in copies[1:]:
                    copy.grad = total.clone()
                for copy in copies:
                    self._add_earlier(copy)

        return reduce

    def counted(self, stage: int) -> list[nn.Parameter]:
        """Of a stage that this rank has: its parameters of which the first copy is this one."""
        if self._transport.rank != self._holders[stage][0]:
            return []
        later = {member for group in self._groups for member in group[1:]}
        named = self._store.module(stage).named_parameters()
        return [parameter for name, parameter in named if (stage, name) not in later]

    @torch.no_grad()
    def _add_earlier(self, parameter: nn.Parameter) -> None:
        """Its gradient is again the tensor that it was before the step, with what came since."""
        _, earlier = self._earlier.pop(id(parameter), (parameter, None))
        if earlier is not None:
            parameter.grad = earlier if parameter.grad is None else earlier.add_(parameter.grad)

    def _sum(self, totals: list[Tensor], ranks: tuple[int, ...]) -> None:
        """Sums each of ``totals`` in place over the ranks, in one message."""
        flat = totals[0].flatten() if len(totals) == 1 else torch.cat([t.flatten() for t in totals])
        flat = flat.to(self._dtype or flat.dtype)
        self._transport.all_reduce(flat, ranks)
        parts = torch.split(flat, [total.numel() for total in totals])
        for total, part in zip(totals, parts, strict=True):
            total.copy_(part.view_as(total))

    def _over_stages(self, group: Group) -> bool:
        """Whether it needs sums. Raises InputError where one stage has two objects of it."""
        stages = stages_of(group)
        if len(stages) == 1 and len(self._copies(group)) > 1:
            names = " and ".join(name for _, name in group)
            raise InputError(f"tied: expected {names} of stage {stages[0]} to be one object")
        return len(stages) > 1

    def _replicas(self, stage: int, elsewhere: set[tuple[int, str]]) -> list[list[nn.Parameter]]:
        """This rank's copies of a replicated stage's parameters, but for those in ``elsewhere``."""
        ranks = self._holders[stage]
        here = self._transport.rank in ranks
        own = list(self._store.module(stage).named_parameters()) if here else []
        first = here and self._transport.rank == ranks[0]
        values = self._transport.share(
            [p.detach().cpu() for _, p in own] if first else None, ranks[0]
        )
        with torch.no_grad():
            for (name, parameter), value in zip(own, values if here else [], strict=True):
                _start(parameter, value, f"stage {stage}: {name}")
        return [[p] for name, p in own if (stage, name) not in elsewhere]

    def _copies(self, group: Group) -> list[nn.Parameter]:
        """This rank's copies, each once."""
        rank = self._transport.rank
        mine = [self._find(s, name) for s, name in group if rank in self._holders[s]]
        return list({id(parameter): parameter for parameter in mine}.values())

    def _find(self, stage: int, name: str) -> nn.Parameter:
        try:
            return self._store.module(stage).get_parameter(name)
        except AttributeError:
            raise InputError(f"tied: stage {stage} has no parameter {name!r}") from None

    @torch.no_grad()
    def _start_equal(self, group: Group) -> None:
        source = self._holders[group[0][0]][0]
        copies = self._copies(group)
        mine: Tensor | None = None
        if source == self._transport.rank:
            mine = copies[0].detach().cpu()
        value = self._transport.share(mine, source)
        for copy in copies:
            _start(copy, value, f"tied: {group}")


def _total(copies: Sequence[nn.Parameter]) -> Tensor:
    """The sum of the copies' gradients, in the first one's."""
    first = copies[0]
    total = torch.zeros_like(first, dtype=first.grad_dtype) if first.grad is None else first.grad
    for copy in copies[1:]:
        if copy.grad is not None:
            total += copy.grad
    return total


def _start(copy: nn.Parameter, value: Tensor, name: str) -> None:
    if copy.shape != value.shape:
        raise InputError(f"{name}: shapes {list(value.shape)} and {list(copy.shape)} differ")
    copy.copy_(value)


def stages_of(group: Group) -> tuple[int, ...]:
    return tuple(sorted({stage for stage, _ in group}))


def tied_stages(tied: Iterable[Group]) -> list[tuple[int, ...]]:
    """The groups of stages that share parameters, ascending."""
    return sorted({stages for stages in map(stages_of, tied) if len(stages) > 1})


def ranks_of(stages: Sequence[int], holders: Sequence[Sequence[int]]) -> tuple[int, ...]:
    return tuple(sorted({rank for stage in stages for rank in holders[stage]}))


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one rank sees: ``groups`` of parameters that are one object; how those were made that
    were registered outside of their stage, and their shapes; of virtual ranks, all objects."""

    groups: list[list[Member]]
    makings: dict[Member, tuple[Making, tuple[int, ...]]]
    objects: dict[int, Member] = field(default_factory=dict)


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
    groups. A rank sees one object in several stages. Where functions make the whole model and
    return a part, all of them register its parameters in the same order, and of one that they
    registered in several modules each stage kept another place.

    Raises InputError for a stage that does not exist, and where virtual ranks have one object.
    """
    for group in tied:
        if not all(0 <= stage < count for stage, _ in group):
            raise InputError(f"tied: expected stages of 0..{count - 1}, got {list(group)}")
    told = {(s, name) for group in tied for s, name in group}
    rows: list[_Seen] = gather(_seen(_named(given, told), own))
    _check_objects([row.objects for row in rows])
    seen = [group for row in rows for group in row.groups]
    return joined([*tied, *seen, *_matching(rows)])


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


def _seen(named: Sequence[tuple[Member, nn.Parameter]], own: Collection[int]) -> _Seen:
    objects: dict[int, list[Member]] = {}
    for member, parameter in named:
        objects.setdefault(id(parameter), []).append(member)
    mine = [(member, parameter) for member, parameter in named if member[0] in own]
    makings = ((member, making_of(parameter), tuple(parameter.shape)) for member, parameter in mine)
    return _Seen(
        [group for group in objects.values() if len(group) > 1],
        {member: (making, shape) for member, making, shape in makings if making is not None},
        {} if here() is None else {id(p): member for member, p in mine if p.requires_grad},
    )


def _matching(rows: Sequence[_Seen]) -> list[list[Member]]:
    """Parameters that were registered alike, of which each stage kept other places."""
    alike: dict[Hashable, dict[Member, Making]] = {}
    for member, (making, shape) in (item for row in rows for item in row.makings.items()):
        alike.setdefault((making.places, shape), {})[member] = making
    return [
        list(group)
        for group in alike.values()
        if all(not set(a.kept) & set(b.kept) for a, b in combinations(group.values(), 2))
    ]


def _check_objects(ranks: Sequence[Mapping[int, Member]]) -> None:
    first: dict[int, tuple[int, Member]] = {}
    for rank, objects in enumerate(ranks):
        for key, (stage, name) in objects.items():
            other, (before, path) = first.setdefault(key, (rank, (stage, name)))
            if other != rank:
                raise InputError(
                    f"stages: {path} of stage {before} on rank {other} and {name} of stage {stage} "
                    f"on rank {rank} are one object: virtual ranks each need their own"
                )


def joined(groups: Iterable[Iterable[Member]]) -> list[list[Member]]:
    """Those that have a member in common are one group; each ascending, and all of them."""
    apart: list[set[Member]] = []
    for group in ({(stage, name) for stage, name in group} for group in groups):
        common = [other for other in apart if other & group]
        apart = [*(other for other in apart if not other & group), group.union(*common)]
    return sorted(map(sorted, apart))
