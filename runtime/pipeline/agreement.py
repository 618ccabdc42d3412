"""Agreement of ranks and replicas, before a step or an evaluation, on whether and how it runs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch.distributed as dist

from pipeloom.ir.errors import InputError, PipeloomError

from ..rank.context import RankContext
from ..stages.gradient_squares import summed
from ..transport import Transport, agreed

T = TypeVar("T")


class ReplicaAgreement:
    """Agreement of one rank with those that have its place in the other replicas, if there are."""

    def __init__(self, context: RankContext) -> None:
        self._group, self._device = context.options.data_group, context.device
        self._timeout = timedelta(seconds=context.options.timeout)
        self._faults = context.transport.replicas

    def count(self, *, yes: bool) -> tuple[int, int]:
        """How many replicas say yes, and of how many; all of them call it."""
        (found,), size = self._sums([yes])
        return int(found), size

    def alike(self, value: int) -> bool:
        """Whether all replicas have this value; all of them call it."""
        (total, squares), size = self._sums([value, value * value])
        return squares * size == total * total

    def _sums(self, values: list[float]) -> tuple[list[float], int]:
        """The sums of all replicas' values, and how many replicas there are."""
        if self._group is None:
            return values, 1
        what = "agreeing with the replicas"
        found = summed(values, self._group, self._device, self._timeout, what, faults=self._faults)
        return found, self._group.size()

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
        failed, _ = self.count(yes=isinstance(mine, PipeloomError))
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


def gathered(transport: Transport, call: Callable[[], T]) -> list[T]:
    """The results of each rank's call. Raises, on all ranks, what one raises."""
    mine: T | PipeloomError
    try:
        mine = call()
    except PipeloomError as error:
        mine = error
    rows = transport.gather(mine)
    for rank, row in enumerate(rows):
        if isinstance(row, PipeloomError):
            raise agreed(type(row)(f"rank {rank}: {row}"))
    return rows


class CountAgreement:
    """Agreement of all ranks, and replicas, on a step's number of microbatches."""

    def __init__(self, context: RankContext) -> None:
        self._transport, self._replicas = context.transport, ReplicaAgreement(context)

    def check(self, count: Callable[[], int]) -> None:
        """Raises InputError, alike on all, where ``count`` is not, or raises on one."""
        rows = self._replicas.result(partial(gathered, self._transport, count))
        apart, elsewhere = len(set(rows)) > 1, not self._replicas.alike(sum(rows))
        if apart or elsewhere:
            where = f"on all ranks, got {rows}" if apart else f"in all replicas, got {rows[0]} here"
            error = InputError(f"microbatches: expected one number {where}")
            raise agreed(error, everywhere=elsewhere)


class UpdateAgreement:
    """Agreement of all ranks, and replicas, on whether a step ends with the optimizers'.

    They tell each other in the first step, and in each one from the first without an update on:
    where nobody leaves it out no other step waits for it.
    """

    def __init__(self, context: RankContext) -> None:
        self._transport, self._replicas = context.transport, ReplicaAgreement(context)
        self._begun = self._left_out = False

    def check(self, *, updates: bool) -> None:
        """Raises InputError, alike on all, where they do not agree."""
        self._left_out = self._left_out or not updates
        if self._left_out or not self._begun:
            self._begun = True
            self._compare(updates)

    def _compare(self, updates: bool) -> None:
        try:
            rows = self._transport.gather(updates)
        except RuntimeError as error:
            raise ConnectionError(
                f"update={updates}, which all ranks begin a step with: {error}"
            ) from error
        self._left_out = self._left_out or not all(rows)
        if len(set(rows)) > 1:
            raise agreed(InputError(f"update: expected one value on all ranks, got {rows}"))
        yes, count = self._replicas.count(yes=updates)
        self._left_out = self._left_out or yes < count
        if yes not in (0, count):
            raise agreed(
                InputError(
                    f"update: expected one value in all replicas, got True in {yes} of {count}"
                ),
                everywhere=True,
            )
