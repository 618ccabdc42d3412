"""``predict``: time and memory of a training step of a given configuration, without running it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from math import exp
from operator import itemgetter
from typing import Any, TypeAlias

from pipeloom.ir.errors import InfeasibleError, InputError
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import OPTIMIZED, Schedule
from pipeloom.ir.units import counted, duration
from pipeloom.report.text_table import table
from pipeloom.solver.core.stopping import NEVER, StoppingCriterion

from .clusters.cluster import Cluster, read_cluster
from .clusters.gpus import GPUS
from .configurations.given_schedule import is_schedule, placed_steps, with_schedule
from .inputs.documents import Document
from .inputs.problem_setup import ProfileLike, ProfileSource
from .models.model import Model
from .models.reading import ModelLike
from .models.run import AttentionKernel, TrainingRun
from .prediction.layer_times import Traffic
from .prediction.memory import GIB, KINDS, RankMemory, memory_of, rooms_of
from .prediction.schedule_word import OPTIMAL, check_schedule
from .prediction.setup import OpOrder, Setup, placement_of
from .prediction.step import StepTimes

LIKELY = 1.2816
"""Half-width, in standard deviations, of the central 80 % interval of a normal distribution."""
OPTIMIZING = 100.0
"""Work limit of the search for the optimal schedule, in millions of simulated ops. A time limit
would make predictions depend on the machine."""
ClusterLike: TypeAlias = Cluster | Document


def cautions(model: Model, run: TrainingRun) -> Iterator[str]:
    """Lines on assumptions about the run, and on aspects that predictions are not validated for."""
    if model.positions and run.attention is AttentionKernel.UNFUSED:
        yield (
            "attention: unfused, as by default of models with learned positions; --attention flash "
            "is for a fused kernel"
        )
    if model.longest and run.seq > model.longest:
        yield f"seq: {run.seq} is more than {model.longest}, the model's max_position_embeddings"
    if model.experts is not None:
        yield (
            "experts: no calibration has seen them, and their loads are taken to be even; "
            "published runs took longer than likely (docs/predict.md)"
        )


@dataclass(frozen=True)
class Prediction:
    """The predicted step of a configuration.

    ``step_ms``: milliseconds; 80 % of runs are expected between ``step_ms_low`` and
    ``step_ms_high``, judging by the calibration of the cluster's GPU. ``memory``: of each pipeline
    rank. ``communication``: for each kind, the traffic of the rank on which it takes longest.
    ``schedule``: the simulated schedule.
    """

    step: StepTimes
    memory: tuple[RankMemory, ...]
    communication: Mapping[str, Traffic]

    @classmethod
    def of(cls, step: StepTimes) -> Prediction:
        """The prediction for the times of a step."""
        return cls(step, memory_of(step), step.communication())

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
        return self.model_tflops_per_gpu / self.step.kernels.peak

    @property
    def memory_gib(self) -> float:
        """Memory of the fullest device, in GiB."""
        return max(rank.total for rank in self.memory) / GIB

    @property
    def profile(self) -> Profile:
        """The simulated pipeline profile: for each stage, the values of one rank of its group.

        M_B is at least M_W, so that the memory limit also holds for schedules that split B and W.
        """
        return self.step.safe_profile

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines on where the profile is conservative, and on what no calibration covers."""
        return tuple(self._notes())

    def _notes(self) -> Iterator[str]:
        if self.step.raised:
            on = ", ".join(_ranges(self.step.raised))
            yield f"in the profile M_B is raised to M_W on stages {on}: what W waits for is more"
        yield from cautions(self.step.setup.model, self.step.setup.run)

    @property
    def schedule(self) -> Schedule:
        """The simulated schedule."""
        return self.step.schedule

    def to_dict(self) -> dict[str, Any]:
        """The object that ``predict --json`` prints."""
        from pipeloom.ir.formats import dump_profile

        numbers = ("step_ms", "step_ms_low", "step_ms_high", "tokens_per_s_per_gpu")
        more = ("model_tflops_per_gpu", "mfu", "memory_gib")
        return {
            **{key: getattr(self, key) for key in (*numbers, *more)},
            "memory": [rank.to_dict() for rank in self.memory],
            "profile": dump_profile(self.profile),
            "notes": list(self.notes),
            "communication": {
                kind: {"total_ms": each.total, "exposed_ms": each.exposed}
                for kind, each in self.communication.items()
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
        return "\n".join([*lines, *(["", self._messages()] if self.communication else [])])

    def _scheduled(self) -> str:
        """The name of the simulated schedule, and its placement."""
        family = self.schedule.known_report.family
        name = "the best schedule found" if family == OPTIMIZED else family
        return f"{name}, {self.schedule.problem.placement.name}"

    @property
    def batch(self) -> str:
        """The microbatches of a step, in words."""
        run = self.step.setup.run
        each = (
            f"{counted(run.microbatches, 'microbatch')} of {counted(run.micro_batch, 'sequence')}"
        )
        return f"{each} of {run.seq} tokens" + f" on each of {run.dp} replicas" * (run.dp > 1)

    def _stages(self) -> str:
        backward = "R+B+W ms" if self.step.setup.run.recompute else "B+W ms"
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
            for kind, each in self.communication.items()
        ]
        return table(["messages", "ms per step", "exposed ms"], rows)


def _ranges(numbers: Sequence[int]) -> Iterator[str]:
    """Runs of consecutive numbers as ``0 to 3``, single ones as ``7``, for ascending numbers."""
    for _, found in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in found]
        yield f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run))


def predict(
    model: ModelLike,
    *,
    cluster: ClusterLike | None = None,
    measured: ProfileLike | None = None,
    should_stop: StoppingCriterion = NEVER,
    **run: Any,
) -> Prediction:
    """Predict time and memory of a training step of ``model`` in the configuration ``run``.

    ``model``: a preset's name, or a mapping or file with the keys of Hugging Face's
    ``config.json``. ``run``: ``gpu``, ``gpus``, ``tp``, ``pp``, ``vp``, ``dp``, ``cp``, ``ep``,
    ``micro_batch``, ``global_batch``, ``seq``, ``precision``, ``recompute``, ``sequence_parallel``,
    ``sharding``, ``layers``, ``layers_per_stage``, ``schedule`` and more; docs/predict.md lists
    their values and defaults. ``schedule`` is a family such as ``zb-h1``, or ``optimal``, or a
    schedule or its file (``plan`` writes one). ``cluster``: a preset's name, a file or an object;
    None: the default cluster of ``gpu``. ``measured``: a profile by layers, whose times and memory
    replace the calculated ones. When ``should_stop`` returns true, the best schedule so far is
    used.

    Raises InputError with one line per fault.
    """
    where = cluster_of(cluster, run.get("gpu"))
    schedule: Any = run.get("schedule")
    given, optimal = is_schedule(schedule), schedule == OPTIMAL
    if given or optimal:
        del run["schedule"]
    else:
        check_schedule(schedule)
    step = StepTimes(Setup.of(model, run, where), where)
    if measured is not None:
        step = replace(step, measured=_layers(measured, step))
    if given:
        step = with_schedule(step, schedule)
    return Prediction.of(_optimized(step, should_stop) if optimal else step)


def cluster_of(given: ClusterLike | None, gpu: Any) -> Cluster:
    """The given cluster, or the default cluster of a GPU. Raises InputError if neither is given."""
    if given is None and gpu is None:
        raise InputError(
            "gpu: expected a GPU's name, or a cluster, such as H100; pipeloom.arithmetic tells a "
            "model's parameters, FLOPs and bytes without one"
        )
    if given is None and not isinstance(gpu, str | os.PathLike):
        raise InputError(f"gpu: expected a name, got {gpu!r:.60}")
    try:
        return read_cluster(gpu if given is None else given)
    except InputError as error:
        key, lines = "gpu" if given is None else "cluster", error.errors
        if given is None and lines[0].startswith("expected one of"):  # no known name is similar
            lines = (f"expected one of {', '.join(GPUS)}, got {os.fspath(gpu)!r}",)
        named = (f"{key}: {x}" if x.startswith("expected ") else x for x in lines)
        raise InputError(*named) from None


def _layers(given: ProfileLike, step: StepTimes) -> tuple[StageProfile, ...]:
    """The measured layers, including embedding and head. Raises InputError if their number is not
    the model's."""
    source = ProfileSource(given)
    layers, expected = source.layers.layers, len(step.setup.work.layers)
    if len(layers) != expected:
        raise InputError(
            f"{source.where}: layers: expected {expected}, embedding and head included, "
            f"got {len(layers)}"
        )
    return layers


def _optimized(step: StepTimes, stop: StoppingCriterion) -> StepTimes:
    """The step with the best schedule for the profile, over all placements with its number of
    stages per rank. A family's schedule is kept if no other is known to fit, or none that fits is
    faster."""
    tried = (found for each in placed_steps(step) for found in _tried(each, stop))
    return min(tried, key=itemgetter(0, 1))[2]


def _tried(step: StepTimes, stop: StoppingCriterion) -> Iterator[tuple[bool, float, StepTimes]]:
    """Candidates with the family's schedule and with the optimized one: whether memory is exceeded,
    the time, and the step."""
    rooms = rooms_of(step)
    yield not (step.activation_bytes <= rooms).all(), step.time, step
    with suppress(InfeasibleError):
        found = _within(step, rooms, stop)
        yield False, found.time, found


def _within(step: StepTimes, rooms: tuple[float, ...], stop: StoppingCriterion) -> StepTimes:
    """The step with the best schedule whose activations fit in ``rooms``, in bytes on each rank."""
    from .optimize import optimize

    run = step.setup.run
    answer = optimize(
        replace(step.safe_profile, memory_limit=rooms),
        run.microbatches,
        placement=placement_of(run).name,
        objective="makespan",
        work_limit=OPTIMIZING,
        should_stop=stop,
    )
    return replace(step, planned=OpOrder(answer.schedule))
