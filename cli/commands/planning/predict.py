"""Predicts the time, memory and communication of a step of a known configuration.

Stage times come from the model's arithmetic and the cluster's calibrated rates; the schedule is
simulated with them. Without --gpu or --cluster, prints the model's parameters, FLOPs and bytes.

example:
  pipeloom predict llama-3-70b --gpu H100 --gpus 64 --tp 8 --pp 4 --global-batch 128
  pipeloom predict config.json --cluster cluster.json --gpus 16 --pp 8 -o profile.json
  pipeloom predict llama-2-70b --micro-batch 8
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeloom.ir.errors import InputError
from pipeloom.planner.requests.fields import option
from pipeloom.planner.requests.plans import PredictRequest

from ...arguments import WritingCommand
from ...output import answer, check_output, finish


@dataclass(frozen=True, kw_only=True)
class PredictCommand(WritingCommand, PredictRequest):
    """The command ``pipeloom predict``: calls :func:`pipeloom.predict`, or
    :func:`pipeloom.arithmetic` if there is no cluster, and prints the result."""

    output: str | None = option("FILE", names=("-o", "--output"))
    """file for the pipeline profile; - is standard output; not written by default"""

    def run(self) -> int:
        check_output(self)
        arguments = self.arguments(PredictRequest)
        if self.gpu is None and self.cluster is None:
            return self._arithmetic(arguments)
        from pipeloom.planner.predict import predict

        found = predict(**arguments)
        facts = found.to_dict()
        if self.output is None:
            answer(self, facts, found)
        else:
            finish(self, facts["profile"], facts, str(found))
        return 0

    def _arithmetic(self, arguments: dict[str, Any]) -> int:
        """Print the model's parameters, FLOPs and bytes, which do not depend on a device.

        ``arguments``: the values of the fields of :class:`PredictRequest`. Returns the exit code.
        Raises InputError for options that need a cluster.
        """
        from pipeloom.planner.models.arithmetic import arithmetic

        for name in ("output", "schedule"):
            if getattr(self, name) is not None:
                raise InputError(f"{name}: expected --gpu or --cluster with it")
        found = arithmetic(**arguments)
        answer(self, found.to_dict(), found)
        return 0
