"""Parameters of which several stages or ranks have copies, which must stay equal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn

from pipeloom.ir.errors import InputError
from pipeloom.ir.model import program as ir

from ..dtensors import is_dtensor, lay_out, local
from ..rank.context import RankContext
from ..stages.gradients import clear_unused, flattened, gradient_of, spread
from ..stages.tie_detection import Group, Member, ranks_of, stages_of
from ..transport import agreed

_Copies: TypeAlias = tuple[str, list[nn.Parameter]]
"""A shared parameter's name, which is the same on all ranks, and its copies on this rank."""


class SharedParameters:
    """Sums the gradients of parameters with copies: tied between stages, or of replicated stages.

    (A stage is replicated if several ranks own it.) All copies of a parameter are first set to the
    value of the first copy and then get the same summed gradient, so they stay equal with any
    optimizer that updates each parameter independently. Of the program's ``reduce`` instructions
    that contain all of a parameter's stages, the one with the fewest stages sums its gradients.

    If gradients are accumulated over several steps, a reduction sums only those of its own step.
    The earlier gradients, which are already equal on all copies, are set aside until then; this
    copies no tensor. All ranks create their object at the same time.
    """

    def __init__(self, context: RankContext) -> None:
        rows, tied = context.program.instructions, context.options.tied
        self._dtype, self._holders = context.options.sum_dtype, context.role.holders
        self._store, self._transport = context.store, context.transport
        self._reductions = {i.stages for row in rows for i in row if isinstance(i, ir.Reduce)}
        self._groups = [g for g in map(sorted, map(set, tied)) if self._over_stages(g)]
        self._shared: dict[tuple[int, ...], list[_Copies]] = {}
        for group in self._groups:
            self._shared.setdefault(stages_of(group), []).append(self._tied(group))
        for stage, ranks in enumerate(self._holders):
            if len(ranks) > 1:
                self._shared[stage,] = self._replicated(stage)
        self._start_equal()
        self._reduced: set[nn.Parameter] = set()  # parameters that this rank's reductions sum
        self._earlier: dict[nn.Parameter, Tensor] = {}

    def trained(self) -> dict[str, set[bool]]:
        """Returns the values of ``requires_grad`` of each parameter's copies on this rank.

        Keys are the parameters' names, which are the same on all ranks.
        """
        rows = [row for rows in self._shared.values() for row in rows if row[1]]
        return {name: {copy.requires_grad for copy in copies} for name, copies in rows}

    @staticmethod
    def check_trained(rows: Sequence[Mapping[str, set[bool]]]) -> None:
        """Raises InputError if copies of a parameter differ in ``requires_grad``.

        ``rows``: the results of :meth:`trained` on all ranks. All ranks call it.
        """
        for name in {name: None for row in rows for name in row}:
            having = {rank: row[name] for rank, row in enumerate(rows) if name in row}
            if len(set().union(*having.values())) > 1:
                got = [f"{' and '.join(map(str, v))} on rank {r}" for r, v in having.items()]
                raise agreed(
                    InputError(
                        f"step: expected requires_grad alike on all copies of {name}, got "
                        f"{', '.join(got)}"
                    )
                )

    def begin(self) -> None:
        """Sets the gradients of earlier steps aside, before a step computes its own."""
        self.restore()  # in case the last step failed
        for parameter in self._reduced:
            if parameter.grad is not None:
                self._earlier[parameter], parameter.grad = parameter.grad, None

    def restore(self) -> None:
        """Adds gradients that are still set aside to the current ones; needed if a step failed."""
        for parameter in [*self._earlier]:
            self._add_earlier(parameter)

    def reduction(self, stages: tuple[int, ...]) -> Callable[[], None]:
        """Returns the function that runs the program's instruction ``reduce`` of ``stages``.

        It sums the gradients of each parameter whose stages are all among ``stages``, unless the
        program has a ``reduce`` of fewer stages that contains them all. Raises InputError if these
        stages share no parameter.
        """
        within = [shared for shared in sorted(self._shared) if set(shared) <= set(stages)]
        if not within:
            raise InputError(
                f"program: reduce {' '.join(map(str, stages))}: no parameter is tied between "
                "these stages: is tied= missing, or the program another model's?"
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
        """Returns a function that sums the gradients of parameters shared by exactly ``stages``.

        Parameters that only some of these stages, or further ones, share are left out. On a rank
        that owns none of the stages, the function does nothing.
        """
        ranks = ranks_of(stages, self._holders)
        if self._transport.rank not in ranks:
            return lambda: None
        shared = [copies for _, copies in self._shared[stages]]
        self._reduced.update(*shared)

        @torch.no_grad()
        def reduce() -> None:
            trained = [copies for copies in shared if copies[0].requires_grad]
            unsure = [c for row in trained if any(p.grad is None for p in row) for c in row]
            totals = [_total(copies) for copies in trained]
            if len(ranks) > 1 and totals:
                here = [*map(local, totals)]
                flat = flattened(here, self._dtype)
                self._transport.all_reduce(flat, ranks)
                spread(flat, here)
            for copies, total in zip(trained, totals, strict=True):
                copies[0].grad = total
                for copy in copies[1:]:
                    copy.grad = total.clone()
            clear_unused(unsure)
            for copy in (copy for copies in shared for copy in copies):
                self._add_earlier(copy)

        return reduce

    def counted(self, stage: int) -> list[nn.Parameter]:
        """Returns the parameters of a stage that this rank includes in the gradient norm.

        They are those whose first copy is in this stage and on this rank.
        """
        if self._transport.rank != self._holders[stage][0]:
            return []
        pairs = [(self._ids(stage, g[1:]), self._ids(stage, g[:1])) for g in self._groups]
        later = frozenset[int]().union(*(others - first for others, first in pairs))
        return [p for p in self._store.module(stage).parameters() if id(p) not in later]

    @torch.no_grad()
    def _add_earlier(self, parameter: nn.Parameter) -> None:
        """Adds the step's gradient to the gradient set aside; the sum becomes ``.grad``."""
        earlier = self._earlier.pop(parameter, None)
        if earlier is not None:
            parameter.grad = earlier if parameter.grad is None else earlier.add_(parameter.grad)

    def _over_stages(self, group: Group) -> bool:
        """Whether the tied parameters in ``group`` are in several stages, so that sums are needed.

        Returns False if they are one object in one stage. Raises InputError if they are in one
        stage, but are not one object.
        """
        stages = stages_of(group)
        if len(stages) == 1 and len(self._tied(group)[1]) > 1:
            names = " and ".join(name for _, name in group)
            raise InputError(f"tied: expected {names} of stage {stages[0]} to be one object")
        return len(stages) > 1

    def _tied(self, group: Group) -> _Copies:
        """Returns the name of the tied parameter ``group`` and its distinct copies on this rank."""
        rank = self._transport.rank
        mine = [self._find(s, name) for s, name in group if rank in self._holders[s]]
        return _named(group), list({id(parameter): parameter for parameter in mine}.values())

    def _replicated(self, stage: int) -> list[_Copies]:
        """Returns this rank's parameters of a replicated stage, except tied ones.

        The list is empty if the rank does not own the stage.
        """
        if self._transport.rank not in self._holders[stage]:
            return []
        tied = self._ids(stage, [member for group in self._groups for member in group])
        own = self._store.module(stage).named_parameters()
        return [(_named([(stage, name)]), [p]) for name, p in own if id(p) not in tied]

    def _start_equal(self) -> None:
        """Sets all copies of each parameter to the value of the first copy; all ranks call it.

        Raises InputError on all ranks if a copy differs in shape, sharding or ``requires_grad``.
        """
        unlike: list[str] = []
        for stages, rows in self._shared.items():
            source = self._holders[stages[0]][0]
            mine = self._transport.rank == source
            own = [(_kind(c[0]), local(c[0].detach()).cpu()) for _, c in rows] if mine else None
            for (name, copies), (kind, value) in zip(
                rows, self._transport.share(own, source), strict=False
            ):
                for copy in copies:
                    if _kind(copy) == kind:
                        local(copy.detach()).copy_(value)
                    else:
                        found = f"{kind} and {_kind(copy)}"
                        unlike.append(f"{name}: expected copies of one kind, got {found}")
        for lines in self._transport.gather(unlike) if self._shared else ():
            if lines:
                raise InputError(lines[0])

    def _ids(self, stage: int, members: Sequence[Member]) -> frozenset[int]:
        """Returns the ``id`` of each parameter of ``stage`` among ``members``, pairs (stage, name).

        A parameter with several names has only one ``id``.
        """
        return frozenset(id(self._find(s, name)) for s, name in members if s == stage)

    def _find(self, stage: int, name: str) -> nn.Parameter:
        try:
            return self._store.module(stage).get_parameter(name)
        except AttributeError:
            raise InputError(f"tied: stage {stage} has no parameter {name!r}") from None


def _named(group: Group) -> str:
    return " and ".join(f"{name} of stage {stage}" for stage, name in group)


def _total(copies: Sequence[nn.Parameter]) -> Tensor:
    """Returns the sum of the copies' gradients, which is computed in the first copy's ``.grad``."""
    lay_out(copies)
    total = gradient_of(copies[0])
    for copy in copies[1:]:
        if copy.grad is not None:
            total += copy.grad
    return total


def _kind(parameter: nn.Parameter) -> str:
    """Returns a text that is equal for two parameters if one may be a copy of the other.

    It describes the shape, whether the parameter is trained and, of a DTensor, the sharding.
    """
    words = [str(list(parameter.shape)), "trained" if parameter.requires_grad else "frozen"]
    if is_dtensor(parameter):
        mesh, placed = parameter.device_mesh, ", ".join(map(str, parameter.placements))
        words.append(f"{placed} at {mesh.get_coordinate()} of a mesh of {tuple(mesh.shape)}")
    return " ".join(words)
