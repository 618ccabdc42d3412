"""Agreement of ranks and replicas, before a step or an evaluation, on whether and how it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch.distributed as dist

from pipeloom.ir.errors import InputError, PipeloomError
from pipeloom.ir.model.program import Program

from ..optim.step_end import StepEnd
from ..rank.consistency import ranks_in_words
from ..rank.context import RankContext
from ..rank.step_watch import Ranks, StepWatch, named
from ..stages.gradient_squares import summed
from ..transport import Transport, agreed

T = TypeVar("T")
REQUEST, TRAINED = "request", "trained"  # what replicas tell each other where they meet


class ReplicaAgreement:
    """Agreement of one rank with those that have its place in the other replicas, if there are."""

    def __init__(self, context: RankContext) -> None:
        self._group, self._device = context.options.data_group, context.device
        self._timeout = timedelta(seconds=context.options.timeout)
        self._faults = context.transport.replicas

    def sums(self, values: list[float]) -> tuple[list[float], int]:
        """The sums of all replicas' values, and how many replicas there are; all of them call
        it."""
        if self._group is None:
            return values, 1
        what = "agreeing with the replicas"
        found = summed(values, self._group, self._device, self._timeout, what, faults=self._faults)
        return found, self._group.size()

    def begin(self, said: str | None, kind: str = "") -> None:
        """Begins a step. ``said``: what it is given, as others may not have; they meet there, and
        tell each other next what is of this ``kind``."""
        if self._faults is not None:
            self._faults.begin()
            if said is not None:
                self._faults.meet(kind, said, self._timeout)

    def result(self, call: Callable[[], T]) -> T:
        """The result of the call; errors that all ranks of a replica raise alike are raised in all
        replicas."""
        mine: T | PipeloomError
        try:
            mine = call()
        except PipeloomError as error:
            if self._group is None or not getattr(error, "agreed", False):
                raise
            mine = error
        (failed,), _ = self.sums([isinstance(mine, PipeloomError)])
        if failed:
            raise self._first(mine if isinstance(mine, PipeloomError) else None)
        assert not isinstance(mine, PipeloomError)
        return mine

    def _first(self, mine: PipeloomError | None) -> PipeloomError:
        assert self._group is not None
        rows: list[Any] = [None] * self._group.size()
        dist.all_gather_object(rows, mine, group=self._group)  # all of them are here
        replica, error = next((i, row) for i, row in enumerate(rows) if row is not None)
        own = mine is not None and replica == self._group.rank()
        text = str(error) if own else f"replica {replica}, {error}"
        return agreed(type(error)(text), everywhere=True)


def gathered(
    transport: Transport,
    call: Callable[[], T],
    around: AbstractContextManager[object] = nullcontext(),  # noqa: B008 - has no state
) -> list[T]:
    """The results of each rank's call, gathered in the context ``around``. Raises, on all ranks,
    what one raises."""
    mine: T | PipeloomError
    try:
        mine = call()
    except PipeloomError as error:
        mine = error
    with around:
        rows = transport.gather(mine)
    for rank, row in enumerate(rows):
        if isinstance(row, PipeloomError):
            raise agreed(type(row)(f"rank {rank}: {row}"))
    return rows


@dataclass(frozen=True, slots=True)
class StepRequest:
    """One rank's wishes for a step: whether it ends with the optimizers', whether it was ``given``
    a program, the microbatches, and the place of its program among those that are known, 0 the
    pipeline's own, None a new one; ``trained``: whether it trains each parameter with copies."""

    updates: bool
    given: bool
    microbatches: int
    place: int | None
    trained: Mapping[str, bool] = field(default_factory=dict)


class StepAgreement:
    """Agreement of all ranks, and replicas, on what a step is.

    They tell each other in the first step, in each one where a number of microbatches may be asked
    for, and in all from the first with a program of its own or without an update on: where nobody
    asks for either no other step waits for it. In a step in which a parameter with copies is
    frozen or trained unlike in the one before, its ranks alone tell each other that, and so do the
    replicas.
    """

    def __init__(self, context: RankContext, step_end: StepEnd) -> None:
        shared, self._averaging = step_end.shared, step_end.averaging
        self._transport, self._replicas = context.transport, ReplicaAgreement(context)
        self._device, self._shared, self._steps = context.device, shared, 0
        self._watch = StepWatch(context.transport, context.program, shared.ranks())
        self._counts = self._tells = context.options.programs is not None
        self._begun = False

    def check(
        self, ask: Callable[[], StepRequest], words: Sequence[str], program: Program | None
    ) -> tuple[StepRequest, set[int | None]]:
        """The request of this rank, and all ranks' places of programs; ``words``: the arguments for
        which they tell each other, ``program`` one of them.

        Raises InputError, alike on all, where ``ask`` does on one, or ranks or replicas differ in
        update or, unless some have a program of the step's own, in microbatches.
        """
        self._steps += 1
        told = self._tells or not self._begun
        if not (told or words):
            changed = self._say_changed()
            self._watch.begin(self._steps)
            self._begin_in_replicas()
            mine = ask()
            self._compare_changed(changed)
            return mine, {mine.place}
        self._begun = True
        said = f"this step with {' and '.join(words) or 'what they are given'}"
        note = f"all ranks are to begin {said}, as rank {self._transport.rank} does"
        around = nullcontext() if told else self._transport.noted(note)
        try:
            if not told:
                self._watch.meet(self._steps, _said(words, program))
            self._replicas.begin(None if told else said, REQUEST)
            asked = partial(self._with_trained, ask)
            rows = self._replicas.result(partial(gathered, self._transport, asked, around))
        except (RuntimeError, OSError) as error:
            raise ConnectionError(f"{note}: {error}") from error
        self._compare(rows)
        return rows[self._transport.rank], {row.place for row in rows}

    def over(self) -> None:
        """The step that was agreed on is over on this rank."""
        self._watch.over()

    def close(self) -> None:
        """No more steps are to come."""
        self._watch.close()

    def _compare(self, rows: Sequence[StepRequest]) -> None:
        counts, updates = [row.microbatches for row in rows], [row.updates for row in rows]
        usual = all(updates) and not any(row.given for row in rows)
        total = sum(counts)
        trained = self._averaging.trained() if self._averaging is not None else []
        found, size = self._replicas.sums([usual, all(updates), total, total * total, *trained])
        self._tells = self._tells or found[0] < size
        if self._tells:
            self._watch.close()
        if all(row.place == 0 for row in rows):
            unlike = self._counts and found[3] * size != found[2] * found[2]
            _check("microbatches: expected one number", counts, f"{counts[0]} here", unlike)
        yes = int(found[1])
        _check("update: expected one value", updates, f"True in {yes} of {size}", 0 < yes < size)
        self._shared.check_trained([row.trained for row in rows])
        self._shared.agree()
        if self._averaging is not None:
            self._averaging.agree(found[4:], size)

    def _begin_in_replicas(self) -> None:
        """Begins a step that asks for nothing, which replicas may freeze or train other parameters
        from on. Raises InputError where they do so unlike each other."""
        changed = None if self._averaging is None else self._averaging.changed()
        if self._averaging is None or changed is None:
            self._replicas.begin(None)
            return
        said = f"this step with {changed}"
        try:
            self._replicas.begin(said, TRAINED)
            self._averaging.agree(*self._replicas.sums([*map(float, self._averaging.trained())]))
        except (RuntimeError, OSError) as error:
            raise ConnectionError(f"all replicas are to begin {said}: {error}") from error

    def _with_trained(self, ask: Callable[[], StepRequest]) -> StepRequest:
        return replace(ask(), trained=self._shared.trained())

    def _say_changed(self) -> dict[Ranks, str]:
        """The words of this rank about copies that it freezes or trains from now on, by the ranks
        that have some. They are told all of it before the step begins: a rank that waits for those
        of one group is missed in no other."""
        changed = self._shared.changed()
        if changed:
            self._shared.trained()  # refuses copies that are unlike here
        said = {ranks: f"requires_grad of {', '.join(names)}" for ranks, names in changed.items()}
        for ranks in sorted(self._shared.ranks() & said.keys()):
            with self._lost(ranks, said[ranks]):
                self._watch.meet(self._steps, said[ranks], ranks)
        return said

    def _compare_changed(self, said: Mapping[Ranks, str]) -> None:
        """Raises InputError where ranks freeze or train copies unlike each other from now on."""
        for ranks in sorted(self._shared.ranks() & said.keys()):
            with self._lost(ranks, said[ranks]) as note, self._transport.noted(note):
                self._shared.check_among(ranks)
        if said:
            self._shared.agree()

    @contextmanager
    def _lost(self, ranks: Ranks, said: str) -> Iterator[str]:
        """The words of what ranks are to do, which errors of lost connections in it say."""
        rank = self._transport.rank
        note = f"{ranks_in_words(ranks)} are to begin this step with {said}, as rank {rank} does"
        try:
            yield note
        except (RuntimeError, OSError) as error:
            raise ConnectionError(f"{note}: {error}") from error


def _said(words: Sequence[str], program: Program | None) -> str:
    """A rank's request in words, with the name of its program."""
    return " and ".join(words) + (f" ({named(program)})" if isinstance(program, Program) else "")


def _check(what: str, values: Sequence[object], here: str, elsewhere: bool) -> None:
    """Raises InputError where the ranks' values are unlike, or ``elsewhere`` those of replicas."""
    if elsewhere or len(set(values)) > 1:
        apart = f"on all ranks, got {values}"
        where = apart if len(set(values)) > 1 else f"in all replicas, got {here}"
        raise agreed(InputError(f"{what} {where}"), everywhere=elsewhere)
