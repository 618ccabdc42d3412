"""Tasks of the ranks: training steps of a compiled program, and the probe of the links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from examples.gpt import GPT
from pipeloom import Pipeline
from pipeloom.ir import parse_program
from pipeloom.runtime import connect
from pipeloom.runtime.probes.link_probe import LinkSamples, probe_links, ring_routes

from .measuring import RankRun, measure


@dataclass(frozen=True)
class Probe:
    """Ping-pong between neighbours on the ring, one pair after the other."""

    size: int
    repeats: int

    def run(self) -> list[LinkSamples]:
        device = torch.device("cpu")
        transport = connect(ring_routes(dist.get_world_size(), 60.0), device)
        samples = probe_links(transport, self.size, self.repeats, device)
        transport.close()
        return samples


@dataclass(frozen=True)
class Train:
    """``steps`` optimizer steps of ``program`` (its JSON), each op at least as long as planned."""

    program: dict[str, Any]
    model: GPT
    steps: int

    def run(self) -> RankRun:
        program = parse_program(self.program, "program")
        pipeline = Pipeline.from_source(program, self.model, memory=False, pace=True, timeout=120.0)
        batches = [self.model.batch(i, pipeline.microbatches) for i in range(self.steps)]

        def step(i: int) -> Sequence[float]:
            losses: list[Tensor] = []
            inputs, target = batches[i]
            pipeline.step(inputs, target=target, losses=losses, return_outputs=False)
            return [loss.item() for loss in losses]

        result = measure(step, self.steps, pipeline.barrier)
        pipeline.close()
        return result
