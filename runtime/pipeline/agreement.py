"""Checks that all ranks and replicas use the same program, options and arguments.

Programs and options are compared when a pipeline is created, arguments in its first step. Without
these checks, ranks with different programs would wait for each other's messages forever, or sum
gradients of different parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import zip_longest
from typing import Any

import torch.distributed as dist

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.program import Program

from ..optim.norm_groups import numbered
from ..optim.shard_squares import summed
from ..optim.step_end import StepEnd
from ..rank.context import RankContext
from ..rank.options import PipelineOptions
from ..transport import agreed

ALIKE = (
    "varying_shapes", "param_dtype", "reduce_dtype", "clip_grad_norm", "loss_scale", "scale_grads",
    "post_validation",
)  # fmt: skip
"""Options that must be equal on all ranks and can be compared by their ``str``."""


def check_alike(program: Program, options: PipelineOptions) -> None:
    """Raises InputError on all ranks if their programs or options differ; all ranks call it."""
    groups = options.norm_groups
    alike: dict[str, object] = {
        "tied": [[tuple(pair) for pair in shared] for shared in options.tied],
        "skips": [tuple(pair) for pair in options.skips],
        **{name: getattr(options, name) for name in ALIKE},
        "norm_groups": groups and numbered(groups),
    }
    _check_hashes(program, alike, options.gather_early)


def _check_hashes(
    program: Program, options: Mapping[str, object], gather: Callable[[Any], list[Any]]
) -> None:
    """Raises InputError on all ranks if their programs or options would not run together.

    Compares hashes of everything that determines the messages and ops of a rank: instructions,
    buffers, placement, transfers and ``options``. Profiles, planned times and reports may differ.
    ``gather(value)`` returns the values of all ranks.
    """
    lines = [*(f"{name}: {value}" for name, value in options.items()), *_described(program)]
    digest = sha256("\n".join(lines).encode()).hexdigest()
    digests: list[str] = gather(digest)
    if len(set(digests)) > 1:
        raise agreed(InputError(_difference(gather(lines))))


def _described(program: Program) -> Iterator[str]:
    """Yields lines of text that are equal for two programs if these run identically."""
    problem = program.schedule.problem
    yield f"ranks, stages, microbatches: {problem.ranks}, {problem.stages}, {problem.microbatches}"
    for rank, row in enumerate(program.instructions):
        for i, instruction in enumerate(row):
            yield f"instruction {i} of rank {rank}: {instruction}"
    for rank, buffers in enumerate(program.buffers):
        yield f"buffers of rank {rank}: {' '.join(map(str, buffers))}"
    for stage, ranks in enumerate(problem.owner.tolist()):
        yield f"ranks of stage {stage}: {ranks}"
    for x, transfer in enumerate(program.schedule.transfers):
        yield f"transfer {x}: {transfer}"


def _difference(rows: Sequence[Sequence[str]]) -> str:
    """Returns an error message with the first line that is not equal on all ranks.

    ``rows``: for each rank, its lines (:func:`_described`).
    """
    pairs = zip_longest(*rows, fillvalue="nothing more")
    first = next(lines for lines in pairs if len(set(lines)) > 1)
    having: dict[str, list[str]] = {}
    for rank, line in enumerate(first):
        having.setdefault(line, []).append(str(rank))
    parts = [f"{line!r} on rank{'s' * (len(r) > 1)} {', '.join(r)}" for line, r in having.items()]
    return f"program: expected one on all ranks, got {', '.join(parts)}"


def same(one: Program, other: Program) -> bool:
    """Whether the two programs have equal instructions, buffers and weight transfers."""
    return one is other or (
        (one.instructions, one.buffers) == (other.instructions, other.buffers)
        and tuple(one.schedule.transfers) == tuple(other.schedule.transfers)
    )


class FirstStep:
    """Checks in a pipeline's first step that ranks and replicas were given matching arguments.

    ``over``: whether there is nothing left to check: after the first step, or without the option
    ``check``.
    """

    def __init__(self, context: RankContext, step_end: StepEnd) -> None:
        self._context = context
        self._shared, self._averaging = step_end.shared, step_end.averaging
        self.over = not context.options.check

    def agree(self, program: Program, *, given: bool, update: bool) -> None:
        """Compares the arguments of the first step between ranks and replicas; all ranks call it.

        ``program``: the program that the step runs. ``given``: whether it is an argument of the
        step rather than the pipeline's own. ``update``: whether the optimizers step. Raises
        InputError on all ranks of all replicas if ``update``, the programs, the numbers of
        microbatches or the parameters that are trained differ.
        """
        transport, group = self._context.transport, self._context.options.data_group
        rows = transport.gather((update, given, self._shared.trained()))
        updates, programs, trained = zip(*rows, strict=True)
        _check("update: expected one value", updates)
        if any(programs):
            _check_hashes(program, {}, transport.gather)
        self._shared.check_trained(trained)
        if group is not None:
            # waits for all replicas within the timeout; the next collective then starts immediately
            summed(self._context, 0.0, group, "agreeing with the replicas")
            rows = [None] * group.size()
            names = [] if self._averaging is None else self._averaging.trained()
            own = update, given, program.schedule.problem.microbatches, names
            dist.all_gather_object(rows, own, group=group)
            updates, programs, counts, trained = zip(*rows, strict=True)
            _check("update: expected one value", updates, "replicas")
            if not any(programs):
                _check("microbatches: expected one number", counts, "replicas")
            unlike = set().union(*trained).difference(set(names).intersection(*trained))
            if unlike:
                line = "step: expected requires_grad alike in all replicas of"
                raise InputError(f"{line} {min(unlike)}")
        self.over = True


def _check(what: str, values: Sequence[object], those: str = "ranks") -> None:
    """Raises InputError if ``values`` are not all equal.

    ``what``: the beginning of the message. ``those``: "ranks" or "replicas"; there is one value for
    each of them.
    """
    if len(set(values)) > 1:
        error = InputError(f"{what} on all {those}, got {list(values)}")
        raise agreed(error, everywhere=those == "replicas")
