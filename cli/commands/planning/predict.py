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

from pipeloom.ir.errors import InputError
from pipeloom.planner.requests.fields import option
from pipeloom.planner.requests.plans import PredictRequest

from ...arguments import WritingCommand, renamed
from ...output import answer, check_output, finish


@dataclass(frozen=True, kw_only=True)
class PredictCommand(WritingCommand, PredictRequest):
    """``pipeloom predict``."""

    output: str | None = option("FILE", names=("-o", "--output"))
    """where to write the pipeline profile; - is standard output; not written by default"""

    def run(self) -> int:
        from pipeloom.planner.models.run import words_of

        check_output(self)
        try:
            words_of(dict(self.others)).raise_faults()
            known = self.gpu is not None or self.cluster is not None
            return self._predict() if known else self._arithmetic()
        except InputError as error:
            raise renamed(error, {key: f"--run: {key}" for key, _ in self.others}) from None

    def _predict(self) -> int:
        from pipeloom.planner.predict import predict

        asked = self.given | ({} if self.gpu is None else {"gpu": self.gpu}) | dict(self.others)
        found = predict(self.model, cluster=self.cluster, **asked)
        facts = found.to_dict()
        if self.output is None:
            answer(self, facts, found)
        else:
            finish(self, facts["profile"], facts, str(found))
        return 0

    def _arithmetic(self) -> int:
        """Print the model's parameters, FLOPs and bytes, which do not depend on a device."""
        from pipeloom.planner.models.arithmetic import arithmetic

        for name in ("output", "schedule"):
            if getattr(self, name) is not None:
                raise InputError(f"{name}: expected --gpu or --cluster with it")
        found = arithmetic(self.model, **self.given | dict(self.others))
        answer(self, found.to_dict(), found)
        return 0
