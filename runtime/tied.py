"""Parameters that several stages share: one start, one gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from pipeloom.ir.errors import InputError

from .stages import StageStore
from .transport import Transport

Group = Sequence[tuple[int, str]]


class TiedParameters:
    """The groups of (stage, parameter name) that are one parameter; ``owners``: who steps a stage.

    Each stage keeps a copy of its own. The copies start as the first stage's, get the same summed
    gradient, and so stay equal under any optimizer that treats a parameter by itself.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        owners: Sequence[Sequence[int]],
        store: StageStore,
        transport: Transport,
    ) -> None:
        self._groups = [sorted(set(group)) for group in groups]
        self._owners = owners
        self._store = store
        self._transport = transport
        for group in self._groups:
            self._start_equal(group)

    def reduction(self, stages: tuple[int, ...]) -> Callable[[], None]:
        """The call that sums the gradients of what exactly these stages share."""
        found = [group for group in self._groups if stages_of(group) == stages]
        if not found:
            raise InputError(
                f"program: reduce {' '.join(map(str, stages))}: no parameter is tied between "
                "these stages"
            )
        ranks = ranks_of(stages, self._owners)
        shared = [self._copies(group) for group in found]

        def reduce() -> None:
            for copies in shared:
                self._reduce(copies, ranks)

        return reduce

    @torch.no_grad()
    def _reduce(self, copies: Sequence[nn.Parameter], ranks: tuple[int, ...]) -> None:
        first = copies[0]
        total = torch.zeros_like(first) if first.grad is None else first.grad
        for copy in copies[1:]:
            if copy.grad is not None:
                total += copy.grad
        if len(ranks) > 1:
            total = total.contiguous()
            self._transport.all_reduce(total, ranks)
        first.grad = total
        for copy in copies[1:]:
            copy.grad = total.clone()

    def _copies(self, group: Group) -> list[nn.Parameter]:
        """This rank's copies, each once."""
        rank = self._transport.rank
        mine = [self._find(s, name) for s, name in group if rank in self._owners[s]]
        return list({id(parameter): parameter for parameter in mine}.values())

    def _find(self, stage: int, name: str) -> nn.Parameter:
        try:
            return self._store.module(stage).get_parameter(name)
        except AttributeError:
            raise InputError(f"tied: stage {stage} has no parameter {name!r}") from None

    @torch.no_grad()
    def _start_equal(self, group: Group) -> None:
        source = self._owners[group[0][0]][0]
        copies = self._copies(group)
        mine: Tensor | None = None
        if source == self._transport.rank:
            mine = copies[0].detach().cpu()
        value = self._transport.share(mine, source)
        for copy in copies:
            if copy.shape != value.shape:
                raise InputError(
                    f"tied: {group}: shapes {list(value.shape)} and {list(copy.shape)} differ"
                )
            copy.copy_(value)


def stages_of(group: Group) -> tuple[int, ...]:
    return tuple(sorted({stage for stage, _ in group}))


def ranks_of(stages: Sequence[int], owners: Sequence[Sequence[int]]) -> tuple[int, ...]:
    return tuple(sorted({rank for stage in stages for rank in owners[stage]}))
