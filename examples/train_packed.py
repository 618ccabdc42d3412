"""Sequences of different lengths, packed and planned for each step, for torchrun::

torchrun --nproc-per-node 4 -m examples.train_packed

First, the time of a microbatch is measured in place. In each step, rank 0 packs the batch, starting
from the previous schedule, and sends the program to all ranks. Planned and measured times are
printed, and the costs of sequences are fitted again to the measured ones.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

import pipeloom
from examples.packed import (
    REFERENCE,
    WIDTH,
    Stage,
    batch_of,
    joined,
    lengths_of,
    sequence_of,
    summed_loss,
)
from pipeloom import Pipeline, Profile, Schedule

STEPS, MICROBATCHES = 6, 8


class Planner:
    """Packs batches on rank 0, and fits the costs of sequences to the times of measured steps."""

    def __init__(self, profile: Profile) -> None:
        self.profile, self.lengths = profile, batch_of(0)
        self.steps: list[tuple[pipeloom.Packing, Schedule]] = []

    def packed(self, step: int) -> pipeloom.Packing:
        batch = self.lengths | {"lengths": lengths_of(step)}
        start = self.steps[-1][0].schedules[0] if self.steps else None
        return pipeloom.pack(batch, self.profile, MICROBATCHES, start=start, time_limit=0.5)

    def learn(self, packing: pipeloom.Packing, trace: Schedule) -> None:
        self.steps = [*self.steps[-3:], (packing, trace)]
        self.profile, self.lengths = pipeloom.refit(self.profile, self.lengths, self.steps)


def everywhere(value: Any) -> Any:
    """Send ``value`` from rank 0 to all ranks, and return it on each of them."""
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def measured_profile(ranks: int, stages: list[Any]) -> Profile:
    """A profile measured with microbatches of one sequence of ``REFERENCE`` tokens. ``stages``: for
    each stage, a function that builds it."""
    stage = pipeloom.StageProfile(1.0, 1.0, 1.0)
    plan = pipeloom.build("1f1b", Profile((stage,) * ranks, ranks), ranks)
    pipeline = Pipeline(pipeloom.compile(plan), stages, loss=partial(summed_loss, tokens=REFERENCE))
    tokens, sequence, targets = joined([sequence_of(0, REFERENCE)])
    found = pipeline.profile(
        [tokens] * ranks, [sequence] * ranks, target=[targets] * ranks, repeats=5
    )
    pipeline.close()
    return found.profile


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    stages = [partial(Stage, s, ranks, WIDTH) for s in range(ranks)]
    planner = Planner(measured_profile(ranks, stages))
    pipeline: Pipeline | None = None
    for step in range(STEPS):
        found = planner.packed(step) if rank == 0 else None
        program, rows = everywhere(
            found and (pipeloom.compile(found.schedules[0]), found.replicas[0])
        )
        if pipeline is None:
            sgd = partial(torch.optim.SGD, lr=0.1)
            options: Any = {"varying_shapes": True, "scale_grads": False}
            pipeline = Pipeline(program, stages, loss=summed_loss, optimizer=sgd, **options)
        parts = [joined([sequence_of(i, lengths_of(step)[i]) for i in row]) for row in rows]
        tokens, sequence, targets = ([part[k] for part in parts] for k in range(3))
        pipeline.barrier()
        began = time.perf_counter()
        total = {"tokens": sum(lengths_of(step))}
        pipeline.step(tokens, sequence, target=targets, loss_kwargs=total, program=program)
        seconds = time.perf_counter() - began
        trace = pipeline.gather_trace()
        if found is not None:
            planner.learn(found, trace)
            both = found.schedules[0].timing, trace.timing
            planned, measured = (timing.makespan for timing in both if timing is not None)
            print(
                f"step {step}: planned {planned:.1f} ms, measured {measured:.1f} ms, in "
                f"{seconds * 1e3:.0f} ms with the change of programs",
                flush=True,
            )
    assert pipeline is not None
    pipeline.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
