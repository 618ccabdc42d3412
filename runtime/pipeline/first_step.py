"""Questions of a pipeline's first step: whether all ranks, and all replicas, begin it alike."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from pipeloom.ir.errors import InputError, PipeloomError
from pipeloom.ir.model.program import Program

from ..optim.shard_squares import summed
from ..optim.step_end import StepEnd
from ..rank.consistency import check_agreement
from ..rank.context import RankContext
from ..transport import agreed, gathered


class FirstStep:
    """The first step's questions, asked once: that the ranks' arguments are alike, and the
    replicas'. Steps that begin unlike each other would wait for each other's messages, or sum
    gradients of different parameters."""

    def __init__(self, context: RankContext, step_end: StepEnd) -> None:
        self._context = context
        self._shared, self._averaging = step_end.shared, step_end.averaging
        self.over = not context.options.check

    def agree(self, program: Program, *, given: bool, update: bool) -> None:
        """Compares what this rank is to run, whether it was ``given`` it, and whether the
        optimizers step; all ranks call it. Raises InputError, alike on all ranks of all replicas,
        where that is unlike."""
        fault: PipeloomError | None = None
        try:
            self._agree_with_ranks(program, given=given, update=update)
        except PipeloomError as error:
            if not getattr(error, "agreed", False):  # this replica has ended
                raise
            fault = error
        if (group := self._context.options.data_group) is not None:
            own = update, given, program.schedule.problem.microbatches
            self._agree_with_replicas(group, fault, own)
        if fault is not None:
            raise fault
        self.over = True

    def _agree_with_ranks(self, program: Program, *, given: bool, update: bool) -> None:
        transport = self._context.transport
        rows = gathered(transport, lambda: (update, given, self._shared.trained()))
        updates, programs, trained = zip(*rows, strict=True)
        _check("update: expected one value", updates)
        if any(programs):
            check_agreement(program, {}, transport.gather)
        self._shared.check_trained(trained)

    def _agree_with_replicas(
        self, group: dist.ProcessGroup, fault: PipeloomError | None, own: tuple[bool, bool, int]
    ) -> None:
        """Raises InputError, alike in all replicas, where one refuses, they update or train unlike
        each other, or have other numbers of microbatches without programs of their own."""
        transport, averaging = self._context.transport, self._averaging
        trained = [] if averaging is None else averaging.trained()
        summed(  # for its time limit: from here on no replica waits for another
            0.0,
            group,
            self._context.device,
            timedelta(seconds=self._context.options.timeout),
            "agreeing with the replicas",
            faults=transport.replicas,
        )
        rows: list[Any] = [None] * group.size()
        dist.all_gather_object(rows, (str(fault or ""), *own, trained), group=group)
        faults, updates, programs, counts, trains = zip(*rows, strict=True)
        for replica, line in enumerate(faults):
            if line:
                raise agreed(fault or InputError(f"replica {replica}, {line}"), everywhere=True)
        _check("update: expected one value", updates, "replicas")
        if not any(programs):
            _check("microbatches: expected one number", counts, "replicas")
        if averaging is not None:
            sums = [sum(column) for column in zip(*trains, strict=True)]
            try:  # only the ranks of that stage know, in all replicas
                gathered(transport, lambda: averaging.check_trained(sums))
            except InputError as error:
                raise agreed(error, everywhere=True) from None


def _check(what: str, values: Sequence[object], those: str = "ranks") -> None:
    """Raises InputError where the values of all ranks, or of all replicas, are unlike."""
    if len(set(values)) > 1:
        error = InputError(f"{what} on all {those}, got {list(values)}")
        raise agreed(error, everywhere=those == "replicas")
