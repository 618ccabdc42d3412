"""Finds the best configurations of a model on a number of GPUs, with a bound for all of them.

Chooses parallel degrees, microbatch, recomputation, sharding, cut and schedule, unless options fix
them. Steps are predicted as by `predict`. Ctrl-C or SIGTERM writes the best plan so far.

example:
  pipeloom plan llama-3-70b --gpu H100 --gpus 64 --global-batch 128 --seq 8192 -o plan
  pipeloom plan config.json --cluster cluster.json --gpus 16 --global-batch 64 --tp 2
  pipeloom plan llama-3-70b --gpu H100 --scale 64,256,1024 --global-batch 128 -o scaling
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pipeloom.ir.errors import InputError
from pipeloom.planner.requests.fields import option
from pipeloom.planner.requests.plans import PlanRequest, ScaleRequest

from ...arguments import Command, Quiet
from ...failures import say
from ...output import answer, check_folder
from ...progress import interruptible, watched


@dataclass(frozen=True, kw_only=True)
class PlanCommand(Command, Quiet, ScaleRequest):
    """``pipeloom plan``."""

    output: str | None = option("DIR", names=("-o", "--output"))
    """folder for the best plan's profile, schedule, program and other systems' flags"""

    def run(self) -> int:
        if self.scale:
            return self._scaling()
        if self.scaling:
            raise InputError("scaling: expected numbers of GPUs with it, --scale 8,16")
        from pipeloom.planner.plan import plan

        with self._searched("plan.json") as watching:
            found = plan(**self.arguments(PlanRequest) | watching)
            if watching["should_stop"]():
                say("interrupted: this is the best plan so far")
            notes = () if self.output is None else found.write(self.output)
        lines = [f"note: {note}" for note in notes]
        lines += [f"written to {self.output}"] if self.output else []
        facts = found.to_dict() | {"output": self.output, "notes": list(notes)}
        answer(self, facts, "\n".join([str(found), *lines]))
        return 0

    def _scaling(self) -> int:
        from pipeloom.planner.scaling import scaling
        from pipeloom.planner.solving.workers import processes_here

        with self._searched("scaling.json") as watching:
            if not (self.workers or self.scheduler):
                watching["workers"] = processes_here()
            found = scaling(**self.arguments(ScaleRequest) | watching)
            if self.output is not None:
                found.write(self.output)
        words = f"{found}\nwritten to {self.output}" if self.output else str(found)
        answer(self, found.to_dict() | {"output": self.output}, words)
        return 0 if found.planned else 1

    @contextmanager
    def _searched(self, file: str) -> Iterator[dict[str, Any]]:
        """Yield the listener and the stopping criterion; ``file`` will be written in the output
        folder."""
        with watched(self.quiet) as display, interruptible() as interrupt:
            check_folder(self.output, file)
            yield {"progress": display, "should_stop": interrupt}
