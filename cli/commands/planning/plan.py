"""Finds the best configurations of a model on a number of GPUs, with a bound for all of them.

Chooses parallel degrees, microbatch, recomputation, sharding, cut and schedule, unless options fix
them. Steps are predicted as by `predict`. Ctrl-C or SIGTERM writes the best plan so far.

example:
  pipeloom plan llama-3-70b --gpu H100 --gpus 64 --global-batch 128 --seq 8192 -o plan
  pipeloom plan config.json --cluster cluster.json --gpus 16 --global-batch 64 --tp 2
  pipeloom plan llama-3-70b --gpu H100 --scale 64,256,1024 --global-batch 128 -o scaling
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeloom.planner.requests.fields import option
from pipeloom.planner.requests.plans import PlanRequest

from ...arguments import Command, Quiet
from ...output import answer, check_folder
from ...progress import interruptible, watched


@dataclass(frozen=True, kw_only=True)
class PlanCommand(Command, Quiet, PlanRequest):
    """The command ``pipeloom plan``: calls :func:`pipeloom.plan`, prints the plan, and writes its
    files."""

    output: str | None = option("DIR", names=("-o", "--output"))
    """folder for the best plan's profile, schedule and program"""

    def run(self) -> int:
        from pipeloom.planner.plan import plan
        from pipeloom.planner.solving.workers import processes_here

        with watched(self.quiet) as display, interruptible() as interrupt:
            check_folder(self.output, "scaling.json" if self.scale else "plan.json")
            asked = self.arguments(PlanRequest) | {"progress": display, "should_stop": interrupt}
            if self.scale and not (self.workers or self.scheduler):
                asked["workers"] = processes_here()
            found = plan(**asked)
            notes = () if self.output is None else found.write(self.output)
        lines = [f"note: {note}" for note in notes]
        lines += [f"written to {self.output}"] if self.output else []
        facts = found.to_dict() | {"output": self.output}
        if notes:
            facts["notes"] = [*facts["notes"], *notes]
        answer(self, facts, "\n".join([str(found), *lines]))
        return 1 if self.scale and not found.planned else 0
