"""A configuration of a model on a number of GPUs, and the schedules that are tried for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeloom.ir.model.placement import Passing, PlacementKind

from ..models.run import FULL, SELECTIVE, Sharding, TrainingRun

AUTO = "auto"
"""The word for recomputation that the schedule decides."""
LEVELS = (frozenset[str](), SELECTIVE, FULL)
"""Levels of recomputation to try if it is not fixed."""
SCHEDULES: Mapping[tuple[str, bool], tuple[str, ...]] = {
    ("linear", False): ("1f1b",),
    ("linear", True): ("zb-h1", "zb-h2"),
    ("interleaved", False): ("interleaved-1f1b",),
    ("interleaved", True): (),
    ("v", False): ("wave",),
    ("v", True): ("v-half", "v-min"),
}
"""Families to try, by placement and by whether B and W are separate ops."""
PLACED_BY = {"linear": "1f1b", "interleaved": "interleaved-1f1b", "v": "wave"}
"""For each placement, a family that has it."""
MOST_STREAMED = 16_384
"""Maximum number of pairs of stage and microbatch for passing weights."""
ROUND_ROBIN = PlacementKind.ROUND_ROBIN.value
"""The placement for passing weights: microbatches are distributed over ranks."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """A point of the space.

    ``run``: its ``schedule`` determines the placement of stages. ``placement``: with
    ``round-robin``, ranks pass weights. ``splits``: whether B and W are separate ops. ``families``:
    the schedules to try; if no schedule is given, the optimizer searches for others. ``remat``,
    ``offload``: whether schedules may recompute whole stages, or move their activations to the host
    and back, for some microbatches.
    """

    run: TrainingRun
    placement: str
    splits: bool
    families: tuple[str, ...]
    remat: bool = False
    offload: bool = False

    @property
    def is_fsdp(self) -> bool:
        """Whether it is FSDP over all GPUs, without any other parallelism."""
        return self.run.sharding is Sharding.FSDP and self.run.dp == self.run.gpus

    @property
    def name(self) -> str:
        """``tp8 pp4 dp2 vp2 b1 full zero1``; degrees of 1 and options ``none`` are omitted."""
        run = self.run
        degrees = [(key, getattr(run, key)) for key in ("tp", "pp", "dp", "cp", "ep", "vp")]
        words = [f"{key}{count}" for key, count in degrees if count > 1]
        words += [f"etp{run.etp}"] * (run.etp != run.tp) + [f"b{run.micro_batch}"]
        words += [self.recompute] if run.recompute or self.remat else []
        words += ["offload"] * self.offload + ["weights"] * (self.passing is Passing.WEIGHTS)
        words += [run.sharding.value] if run.sharding is not Sharding.NONE else []
        words += ["cut"] * (run.layers_per_stage is not None) + ["v"] * (self.placement == "v")
        return " ".join(words + ["B/W"] * self.splits)

    @property
    def passing(self) -> Passing:
        """The kind of tensors that pipeline ranks send each other."""
        return Passing.WEIGHTS if self.placement == ROUND_ROBIN else Passing.ACTIVATIONS

    @property
    def recompute(self) -> str:
        """The word for the level of recomputation."""
        again = self.run.recompute
        if self.remat:
            return AUTO
        return "selective" if again == SELECTIVE else "+".join(sorted(again)) or "none"


def in_words(value: Any) -> str:
    """A value of a run's key in command-line syntax: ``12,14``, ``core_attn,mlp``."""
    if isinstance(value, frozenset):
        return ",".join(sorted(value)) or "none"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def has_placement(placement: str, run: TrainingRun) -> bool:
    """Whether the placement has the run's number of stages per rank."""
    if placement == "linear":
        return run.vp == 1
    return run.vp == 2 if placement == "v" else run.vp > 1


def passes_weights(run: TrainingRun) -> bool:
    """Whether ranks may pass weights: each rank has a microbatch, replicas hold whole stages, and a
    schedule with all its transfers can be built within seconds."""
    few = run.pp * run.microbatches <= MOST_STREAMED
    return few and 1 < run.pp <= run.microbatches and run.sharding is not Sharding.FSDP
