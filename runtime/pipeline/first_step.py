"""Questions of a pipeline's first step: whether all ranks, and all replicas, begin it alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.program import Program

from ..optim.step_end import StepEnd
from ..rank.consistency import check_agreement
from ..rank.context import RankContext
from ..stages.gradient_squares import summed
from ..transport import agreed, gathered


@dataclass(frozen=True, slots=True)
class StepRequest:
    """One rank's arguments of a step, compared with those of the other ranks.

    ``program``: what runs. ``given``: whether the caller passed it. ``updates``: whether the
    optimizers step at the end. ``trained``: by name, whether each parameter with copies requires a
    gradient."""

    program: Program
    given: bool
    updates: bool
    trained: Mapping[str, bool] = field(default_factory=dict)

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

    def agree(self, ask: Callable[[], StepRequest]) -> StepRequest:
        """This rank's request; all ranks call it. Raises InputError, alike on all, where ``ask``
        does on one, or requests are unlike."""
        transport = self._context.transport
        own: list[StepRequest] = []

        def asked() -> tuple[bool, int, bool, Mapping[str, bool]]:
            own.append(replace(ask(), trained=self._shared.trained()))
            return own[0].updates, own[0].microbatches, own[0].given, own[0].trained

        updates, counts, given, trained = zip(*gathered(transport, asked), strict=True)
        _check("update: expected one value", updates)
        if any(given):
            check_agreement(own[0].program, {}, transport.gather)
        _check("microbatches: expected one number", counts)
        self._shared.check_trained(trained)
        self._agree_with_replicas(own[0])
        self.over = True
        return own[0]

    def _agree_with_replicas(self, own: StepRequest) -> None:
        """Raises InputError, alike in all replicas, where they update or train unlike each other,
        or have other numbers of microbatches without programs of their own."""
        options, averaging = self._context.options, self._averaging
        if options.data_group is None:
            return
        trained = [] if averaging is None else averaging.trained()
        count = own.microbatches
        found = summed(
            [own.updates, own.given, count, count * count, *trained],
            options.data_group,
            self._context.device,
            timedelta(seconds=options.timeout),
            "agreeing with the replicas",
            faults=self._context.transport.replicas,
        )
        updates, given, total, squares, *sums = found
        size = options.data_group.size()
        if 0 < updates < size:
            raise _unlike("update: expected one value", f"True in {int(updates)} of {size}")
        if not given and squares * size != total * total:
            raise _unlike("microbatches: expected one number", f"{count} here")
        if averaging is not None:
            averaging.check_trained(sums)


def _check(what: str, values: Sequence[object]) -> None:
    """Raises InputError where the ranks' values are unlike."""
    if len(set(values)) > 1:
        raise agreed(InputError(f"{what} on all ranks, got {list(values)}"))


def _unlike(what: str, got: str) -> Exception:
    return agreed(InputError(f"{what} in all replicas, got {got}"), everywhere=True)
