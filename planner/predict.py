"""``predict``: time and memory of a training step of a given configuration, without running it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import exp
from typing import Any

from pipeloom.ir.formats import dump_profile
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.schedule import OPTIMIZED, Schedule
from pipeloom.ir.units import counted, duration
from pipeloom.report.text_table import table

from .clusters.cluster import Cluster, cluster_of
from .clusters.efficiency import calibrated
from .models.model import Model
from .models.run import AttentionKernel, Recompute, TrainingRun
from .prediction.memory import GIB, KINDS, RankMemory, memory_of
from .prediction.rates import Rates
from .prediction.setup import Setup
from .prediction.step import PredictedStep
from .requests.fields import takes
from .requests.plans import PredictRequest

LIKELY = 1.2816
"""Half-width, in standard deviations, of the central 80 % interval of a normal distribution."""
NUMBERS = (
    *("step_ms", "step_ms_low", "step_ms_high", "tokens_per_s_per_gpu"),
    *("model_tflops_per_gpu", "mfu", "memory_gib"),
)
"""The attributes of a prediction that are numbers in its JSON object."""


def cautions(model: Model, run: TrainingRun, cluster: Cluster) -> Iterator[str]:
    """Yield lines of text on assumptions about the run, and on properties of the model that
    predictions are not validated for."""
    if model.positions and run.attention is AttentionKernel.UNFUSED:
        yield (
            "attention: unfused, as by default of models with learned positions; --attention flash "
            "is for a fused kernel"
        )
    if model.longest and run.seq > model.longest:
        yield f"seq: {run.seq} is more than {model.longest}, the model's max_position_embeddings"
    if cluster.efficiency == calibrated(""):
        yield f"gpu: no measured runs of {cluster.gpu.name} are known: its rates are usual ones"
    if model.experts is not None:
        yield (
            "experts: no calibration has seen them, and their loads are taken to be even; "
            "published runs took longer than likely (docs/predict.md)"
        )


@dataclass(frozen=True)
class Prediction:
    """The predicted step of a configuration.

    Measured step times are expected to be between ``step_ms_low`` and ``step_ms_high`` in 80 % of
    cases, judging by the calibration of the cluster's GPU.
    """

    step: PredictedStep

    @cached_property
    def memory(self) -> tuple[RankMemory, ...]:
        """The memory of each pipeline rank."""
        return memory_of(self.step)

    @property
    def step_ms(self) -> float:
        """Step time, in milliseconds."""
        return self.step.time

    @property
    def step_ms_low(self) -> float:
        """The 10th percentile of the step time, in milliseconds."""
        return self.step_ms * exp(-LIKELY * self.step.spread)

    @property
    def step_ms_high(self) -> float:
        """The 90th percentile of the step time, in milliseconds."""
        return self.step_ms * exp(LIKELY * self.step.spread)

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Tokens per second on each GPU."""
        run = self.step.setup.run
        return run.global_batch * run.seq / run.gpus / self.step_ms * 1e3

    @property
    def model_tflops_per_gpu(self) -> float:
        """TFLOP/s of the model on each GPU, excluding recomputation."""
        return self.step.setup.model_flops / self.step.setup.run.gpus / self.step_ms / 1e9

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization: share of the published dense peak in the run's precision."""
        peak = self.step.cluster.gpu.peak(self.step.setup.run.precision.units)
        return self.model_tflops_per_gpu / peak

    @property
    def memory_gib(self) -> float:
        """Memory of the fullest device, in GiB."""
        return max(rank.total for rank in self.memory) / GIB

    @property
    def profile(self) -> Profile:
        """The profile of the simulated pipeline: for each stage, the values of one rank of its
        tensor and context parallel group.

        M_B is at least M_W, so that memory limits are also valid for schedules that split B and W.
        """
        return self.step.safe_profile

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines of text on values of the profile that are higher than predicted, on assumptions,
        and on what predictions are not validated for."""
        return tuple(self._notes())

    def _notes(self) -> Iterator[str]:
        yield from cautions(self.step.setup.model, self.step.setup.run, self.step.cluster)

    @cached_property
    def schedule(self) -> Schedule:
        """The simulated schedule."""
        return self.step.schedule

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``predict --json`` prints."""
        return {
            **{key: getattr(self, key) for key in NUMBERS},
            "memory": [rank.to_dict() for rank in self.memory],
            "profile": dump_profile(self.profile),
            "notes": list(self.notes),
            "communication": {
                kind: {"total_ms": each.total, "exposed_ms": each.exposed}
                for kind, each in self.step.communication.items()
            },
        }

    def __str__(self) -> str:
        low, high = duration(self.step_ms_low), duration(self.step_ms_high)
        device = self.step.cluster.gpu
        over = "" if self.memory_gib <= device.memory_gib else ": DOES NOT FIT"
        lines = [
            f"{self.profile.name}: {duration(self.step_ms)} per step, likely {low} to {high}",
            f"{self.tokens_per_s_per_gpu:.5g} tokens/s/GPU, {self.model_tflops_per_gpu:.4g} model "
            f"TFLOP/s/GPU, MFU {self.mfu * 100:.1f} %",
            f"{self.memory_gib:.1f} GiB on the fullest device, of {device.memory_gib:g}{over}",
            f"{self.batch}; {self._scheduled()}",
            f"links: {self.step.cluster.network}",
            "",
            self._stages(),
            *self.notes,
        ]
        return "\n".join([*lines, *(["", self._messages()] if self.step.communication else [])])

    def _scheduled(self) -> str:
        """Return the name of the simulated schedule and that of its placement."""
        family = self.schedule.known_report.family
        name = "the best schedule found" if family == OPTIMIZED else family
        return f"{name}, {self.schedule.problem.placement.name}"

    @property
    def batch(self) -> str:
        """The number and size of the microbatches of a step, in words."""
        run = self.step.setup.run
        each = (
            f"{counted(run.microbatches, 'microbatch')} of {counted(run.micro_batch, 'sequence')}"
        )
        return f"{each} of {run.seq} tokens" + f" on each of {run.dp} replicas" * (run.dp > 1)

    def _stages(self) -> str:
        recomputes = self.step.setup.run.recompute is not Recompute.NONE
        backward = "R+B+W ms" if recomputes else "B+W ms"
        header = ["rank", "stages", "F ms", backward, *(f"{kind} GiB" for kind in KINDS), "total"]
        rows = [
            [
                str(rank),
                ",".join(map(str, found.stages)),
                f"{sum(self.profile.stages[s].t_f for s in found.stages):.2f}",
                f"{sum(self.profile.stages[s].fused for s in found.stages):.2f}",
                *(f"{found.bytes[kind] / GIB:.2f}" for kind in KINDS),
                f"{found.total / GIB:.2f}",
            ]
            for rank, found in enumerate(self.memory)
        ]
        return table(header, rows)

    def _messages(self) -> str:
        rows = [
            [kind, f"{each.total:.1f}", f"{each.exposed:.1f}"]
            for kind, each in self.step.communication.items()
        ]
        return table(["messages", "ms per step", "exposed ms"], rows)


@takes(PredictRequest)
def predict(request: PredictRequest) -> Prediction:
    """Predict time and memory of a training step of ``model`` in a configuration.

    ``model``: a preset's name, or a mapping or file with the keys of Hugging Face's
    ``config.json``. ``cluster``: a preset's name, a file or an object; by default, the default
    cluster of the GPU ``gpu``. The other arguments are the settings of the training run;
    docs/predict.md lists their values and defaults.

    Raises InputError with one line per fault.
    """
    where = cluster_of(request.cluster, request.gpu)
    return Prediction(PredictedStep(Setup.of(request.model, request.given, where), Rates(where)))
