"""Requests for a model on GPUs: ``predict`` and ``plan``, with the settings of a training run."""

from __future__ import annotations

from argparse import BooleanOptionalAction
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from ..inputs.words import size_in
from .fields import Request, option, place
from .kinds import AMOUNT, COUNT, SECONDS, Kind, typed
from .search import WORKERS, Limited

if TYPE_CHECKING:
    from ..clusters.cluster import ClusterLike
    from ..models.reading import ModelLike

RUN, SEARCH, SCALING = "the run", "the search", "scaling"
count = partial(option, "N", typed(COUNT), group=RUN)
word = partial(option, "WORD", group=RUN)
flag = partial(option, action=BooleanOptionalAction, group=RUN)


@dataclass(frozen=True, kw_only=True)
class RunWords(Request):
    """A request with the settings of a training run: parallelism, batch, precision, memory savings.

    A setting that is not given is None; :class:`..models.run.TrainingRun` documents the defaults.
    """

    gpus: int | None = count()
    """number of GPUs; by default, tp x pp x cp x dp"""
    tp: int | None = count()
    """tensor parallel degree"""
    pp: int | None = count()
    """pipeline parallel degree"""
    vp: int | None = count()
    """stages per pipeline rank"""
    dp: int | None = count()
    """data parallel degree; by default, gpus / (tp x pp x cp)"""
    cp: int | None = count()
    """context parallel degree"""
    ep: int | None = count()
    """expert parallel degree"""
    etp: int | None = count()
    """tensor parallel degree of an expert; tp by default"""
    micro_batch: int | None = count()
    """sequences per microbatch"""
    global_batch: int | None = count()
    """sequences per step"""
    seq: int | None = count()
    """tokens per sequence; by default 4096, or the model's positions if these are fewer"""
    layers: int | None = count()
    """number of decoder layers, if fewer than the model has are used"""
    layers_per_stage: str | Sequence[int] | None = word()
    """decoder layers of each stage, such as 12,14"""
    precision: str | None = word()
    """fp32, bf16 (the default), fp16, fp8, mxfp8 or nvfp4"""
    gradients: str | None = word()
    """number format in which gradients are summed, such as fp32"""
    recompute: str | None = word()
    """none (the default), selective or full"""
    sharding: str | None = word()
    """none (the default), zero1, zero2 or fsdp"""
    attention: str | None = word()
    """flash or unfused; by default flash, or unfused for learned positions (GPT, OPT)"""
    schedule: str | None = word()
    """a family such as zb-h1; by default 1f1b, or interleaved-1f1b with vp > 1"""
    sequence_parallel: bool | None = flag()
    """divide norms and residual additions over tensor parallel ranks; the default with tp > 1"""
    fused_cross_entropy: bool | None = flag()
    """overwrite logits with their gradient instead of holding them in float32"""
    compile: bool | None = flag()
    """assume that a compiler fuses elementwise kernels"""

    @property
    def given(self) -> dict[str, Any]:
        """The settings that are not None, by name."""
        words = self.arguments(RunWords)
        return {name: value for name, value in words.items() if value is not None}


@dataclass(frozen=True)
class OnDevices(RunWords):
    """A request for a training run of a model on a GPU type or a cluster."""

    apart: ClassVar[Sequence[tuple[str, str]]] = (("gpu", "cluster"),)

    model: ModelLike = field(metadata=place("MODEL"))
    """name of a preset, or Hugging Face config.json"""
    cluster: ClusterLike | None = option("NAME|FILE")
    """name of a preset, or cluster file"""
    _: KW_ONLY
    gpu: str | None = option("NAME")
    """GPU such as H100, in the cluster that is usual for it"""


@dataclass(frozen=True, kw_only=True)
class PredictRequest(OnDevices):
    """The arguments of :func:`pipeloom.predict`.

    Two arguments can replace ``global_batch``: ``microbatches``, the number of microbatches of one
    replica per step, or ``local_batch``, the number of its sequences.
    """

    microbatches: int | None = None
    local_batch: int | None = None

    @property
    def given(self) -> dict[str, Any]:
        batch = {"microbatches": self.microbatches, "local_batch": self.local_batch}
        return super().given | {key: size for key, size in batch.items() if size is not None}


def _scale(text: str) -> list[int]:
    """Parse comma-separated numbers of GPUs such as ``8,16,32``. Raises InputError if invalid."""
    return [COUNT.read(word) for word in text.split(",")]


@dataclass(frozen=True, kw_only=True)
class PlanRequest(Limited, OnDevices):
    """The arguments of :func:`pipeloom.plan`."""

    apart = (*OnDevices.apart, ("workers", "scheduler"), ("time_limit", "work_limit"))
    described = (RUN, "pipeloom chooses what is not given")

    gpus: int | None = count()
    """number of GPUs"""
    dp: int | None = count()
    """data parallel degree"""
    etp: int | None = count()
    """tensor parallel degree of an expert: 1 or tp"""
    recompute: str | None = word()
    """none, selective or full"""
    sharding: str | None = word()
    """none, zero1, zero2 or fsdp; by default, zero1 or fsdp is chosen"""
    schedule: str | None = word()
    """a family such as zb-h1; any schedule by default"""
    headroom: float | str | None = option("X", Kind(size_in))
    """memory to leave free on each device, such as 4GB; none by default"""
    workers: int | None = option("N", WORKERS, group=SEARCH)
    """processes that solve configurations (with --scale, numbers of GPUs) in parallel and share the
    cores; by default 1, which uses only this process, and with --scale one for every two cores"""
    scheduler: str | None = option("ADDRESS", group=SEARCH)
    """use the workers of this Dask scheduler instead, such as tcp://host:8786"""
    time_limit: float | None = option("S", SECONDS, group=SEARCH)
    """seconds for the whole search, or with --scale for each number of GPUs, 45 by default; stops
    earlier once no plan can be better"""
    work_limit: float | None = option("N", AMOUNT, group=SEARCH)
    """instead of --time-limit: work of the whole search, or with --scale for each number of GPUs,
    in millions of simulated ops (about 100 take a second); the answer is the same on every
    machine"""
    seed: int = 0
    scale: Sequence[int] = option(
        "N,N,...", Kind(_scale), default=(), action="merge", group=SCALING
    )
    """numbers of GPUs, instead of --gpus: find the best plan for each of them; --global-batch is
    for the smallest number of GPUs and grows in proportion to it"""
