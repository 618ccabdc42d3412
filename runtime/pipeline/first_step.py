"""Questions of a pipeline's first step: whether all ranks, and all replicas, begin it alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from pipeloom.ir.errors import InputError, PipeloomError
from pipeloom.ir.model.program import Program

from ..optim.shard_squares import summed
from ..optim.step_end import StepEnd
from ..rank.consistency import check_agreement
from ..rank.context import RankContext
from ..transport import agreed, gathered


@dataclass(frozen=True, slots=True)
class StepRequest:
    """One rank's arguments of a step, compared with those of the other ranks.

    ``program``: what runs. ``given``: whether the caller passed it. ``updates``: whether the
    optimizers step at the end."""

    program: Program
    given: bool
    updates: bool

    @property
    def microbatches(self) -> int:
        return self.program.schedule.problem.microbatches


class FirstStep:
    """The first step's questions, asked once: that the ranks' requests are alike, and the
    replicas'. Steps that begin unlike each other would wait for each other's messages, or sum
    gradients of different parameters."""

    def __init__(self, context: RankContext, step_end: StepEnd) -> None:
        self._context = context
        self._shared, self._averaging = step_end.shared, step_end.averaging
        self.over = not context.options.check

    def agree(self, own: StepRequest) -> None:
        """Compares this rank's request; all ranks call it. Raises InputError, alike on all ranks of
        all replicas, where requests are unlike."""
        fault: PipeloomError | None = None
        try:
            self._agree_with_ranks(own)
        except PipeloomError as error:
            if not getattr(error, "agreed", False):  # this replica has ended
                raise
            fault = error
        self._agree_with_replicas(own, fault)
        if fault is not None:
            raise fault
        self.over = True

    def _agree_with_ranks(self, own: StepRequest) -> None:
        transport = self._context.transport
        rows = gathered(transport, lambda: (own.updates, own.given, self._shared.trained()))
        updates, given, trained = zip(*rows, strict=True)
        _check("update: expected one value", updates)
        if any(given):
            check_agreement(own.program, {}, transport.gather)
        self._shared.check_trained(trained)

    def _agree_with_replicas(self, own: StepRequest, fault: PipeloomError | None) -> None:
        """Raises InputError, alike in all replicas, where one refuses, they update or train unlike
        each other, or have other numbers of microbatches without programs of their own."""
        group, averaging = self._context.options.data_group, self._averaging
        if group is None:
            return
        mine = str(fault or ""), own.updates, own.given, own.microbatches
        trained = [] if averaging is None else averaging.trained()
        # for its time limit: from here on no replica waits for another
        summed(self._context, 0.0, group, "agreeing with the replicas")
        rows: list[Any] = [None] * group.size()
        dist.all_gather_object(rows, (*mine, trained), group=group)
        errors, updates, given, counts, trains = zip(*rows, strict=True)
        if any(errors):
            replica, line = next((k, line) for k, line in enumerate(errors) if line)
            error = InputError(f"replica {replica}, {line}")
            raise agreed(fault or error, everywhere=True)
        _check("update: expected one value", updates, "replicas")
        if not any(given):
            _check("microbatches: expected one number", counts, "replicas")
        if averaging is not None:
            sums = [sum(column) for column in zip(*trains, strict=True)]
            try:  # only the ranks of that stage know, in all replicas
                gathered(self._context.transport, lambda: averaging.check_trained(sums))
            except InputError as error:
                raise agreed(error, everywhere=True) from None


def _check(what: str, values: Sequence[object], those: str = "ranks") -> None:
    """Raises InputError where the values of all ranks, or of all replicas, are unlike."""
    if len(set(values)) > 1:
        error = InputError(f"{what} on all {those}, got {list(values)}")
        raise agreed(error, everywhere=those == "replicas")
