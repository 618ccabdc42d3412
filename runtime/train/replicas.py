"""Replicas of a pipeline in one run: their number, their processes, and their data.

Processes are numbered replica by replica: of 2 replicas with 3 ranks each, the second one has the
processes 3, 4 and 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.program import Program

from ..launch.environment import world
from ..pipeline.model_source import ModelSource, checked_batch
from ..pipeline.pipeline import Pipeline
from ..rank.role import averages
from ..transport import new_group
from .settings import RunSettings


@dataclass(frozen=True, slots=True)
class Replicas:
    """The replicas of a run, as seen by one process.

    ``count``: the number of replicas. ``index``: the replica of this process, from 0. ``group``:
    the processes of this replica. ``data_group``: the processes with this one's rank in all
    replicas. Both groups are None if the program does not average over replicas.
    """

    count: int = 1
    index: int = 0
    group: dist.ProcessGroup | None = None
    data_group: dist.ProcessGroup | None = None

    @classmethod
    def of(cls, program: Program, seconds: float) -> Replicas:
        """Returns this process's view of the replicas, and creates their process groups.

        All processes of ``torch.distributed`` call it. ``seconds``: the timeout of the groups.
        """
        if not averages(program):
            return cls()
        ranks, patience = program.schedule.problem.ranks, timedelta(seconds=seconds)
        size = dist.get_world_size()
        rows = [list(range(first, first + ranks)) for first in range(0, size, ranks)]
        columns = [list(column) for column in zip(*rows, strict=True)]
        group, data_group = _mine(rows, patience), _mine(columns, patience)
        return cls(len(rows), dist.get_rank() // ranks, group, data_group)

    def batch(
        self, source: ModelSource, step: int, microbatches: int, method: str
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Returns this replica's inputs and targets, each one tensor per microbatch.

        ``microbatches``: their number in each replica. ``method``: the name of the source's method
        (such as ``batch``), which is called for the microbatches of all replicas together. Raises
        InputError if its result is invalid.
        """
        inputs, targets = checked_batch(source, step, self.count * microbatches, method)
        mine = slice(self.index * microbatches, (self.index + 1) * microbatches)
        return inputs[mine], targets[mine]

    def gather(self, pipeline: Pipeline, value: Any) -> list[list[Any]]:
        """Returns the values that all processes passed, as ``[replica][rank]``.

        All processes call it.
        """
        rows = pipeline.gather(value)
        if self.data_group is None:
            return [rows]
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, rows, group=self.data_group)
        return found

    def barrier(self, pipeline: Pipeline) -> None:
        """Waits until all ranks of all replicas have called it."""
        pipeline.barrier()
        if self.data_group is not None:
            token = torch.zeros(1, device=pipeline.device)
            dist.all_reduce(token, group=self.data_group)
            token.item()


def _mine(rows: Sequence[Sequence[int]], patience: timedelta) -> dist.ProcessGroup:
    """Creates a process group for each of ``rows``; returns the one that contains this process.

    ``rows``: lists of global ranks. All processes call it. ``patience``: the timeout of the groups.
    """
    groups = [new_group(row, patience) for row in rows]
    return next(group for group in groups if group is not None)


def count_replicas(program: Program, settings: RunSettings) -> int:
    """Returns the number of replicas of a run; 1 if the program does not average over replicas.

    Otherwise, the number is defined by the first of these that does: the settings, the number of
    processes that torchrun started, and the program's profile. Raises InputError if program and
    settings contradict each other, or if none of the three defines the number.
    """
    asked = settings.replicas
    if not averages(program):
        if asked not in (None, 1):
            raise InputError(
                f"instructions: expected averages for {asked} replicas, as compile --data-parallel "
                "makes them, got none"
            )
        return 1
    if asked is not None:
        return asked
    problem = program.schedule.problem
    if (joined := world()) is not None:
        count, more = divmod(joined[1], problem.ranks)
        if more:
            raise InputError(
                f"WORLD_SIZE: expected a multiple of {problem.ranks}, the program's ranks, got "
                f"{joined[1]}"
            )
        return count
    planned = problem.profile.data_parallel
    if planned is None:
        raise InputError(
            "schedule: profile: data_parallel: missing; expected it with the number of replicas, "
            "its size, or --replicas R"
        )
    return planned.size
