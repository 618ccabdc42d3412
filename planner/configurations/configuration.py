"""One configuration of a model on so many GPUs, and the schedules that are tried of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeloom.ir.model.placement import Passing, PlacementKind

from ..models.run import FULL, SELECTIVE, Sharding, TrainingRun

AUTO = "auto"
"""Recomputation as the schedule finds best."""
LEVELS = (frozenset[str](), SELECTIVE, FULL)
"""What is recomputed, where it is not fixed."""
SCHEDULES: Mapping[tuple[str, bool], tuple[str, ...]] = {
    ("linear", False): ("1f1b",),
    ("linear", True): ("zb-h1", "zb-h2"),
    ("interleaved", False): ("interleaved-1f1b",),
    ("interleaved", True): (),
    ("v", False): ("wave",),
    ("v", True): ("v-half", "v-min"),
}
"""The families that are tried, by placement and by whether B and W are apart."""
PLACED_BY = {"linear": "1f1b", "interleaved": "interleaved-1f1b", "v": "wave"}
"""A family with the placement."""
MOST_STREAMED = 16_384
"""Pairs of a stage and a microbatch, at most, where weights are passed."""
ROUND_ROBIN = PlacementKind.ROUND_ROBIN.value
"""The placement of microbatches on ranks that pass weights."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """One point of the space: a run whose ``schedule`` says where stages lie, and whose ranks pass
    weights where ``placement`` is ``round-robin``.

    ``splits``: B and W are ops of their own. ``families``: the schedules that are tried; where the
    schedule is not given, the optimizer looks for others. ``remat``, ``offload``: which may
    recompute whole stages, or move what they hold to the host and back, each for the microbatches
    that it pays for.
    """

    run: TrainingRun
    placement: str
    splits: bool
    families: tuple[str, ...]
    remat: bool = False
    offload: bool = False

    @property
    def is_fsdp(self) -> bool:
        """Whether it is FSDP over all GPUs, without another degree."""
        return self.run.sharding is Sharding.FSDP and self.run.dp == self.run.gpus

    @property
    def name(self) -> str:
        """``tp8 pp4 dp2 vp2 b1 full zero1``; what is 1 or none is left out."""
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
        """The kind of tensors that ranks of the pipeline send each other."""
        return Passing.WEIGHTS if self.placement == ROUND_ROBIN else Passing.ACTIVATIONS

    @property
    def recompute(self) -> str:
        """The word for what is computed again."""
        again = self.run.recompute
        if self.remat:
            return AUTO
        return "selective" if again == SELECTIVE else "+".join(sorted(again)) or "none"


def in_words(value: Any) -> str:
    """A value of a run's key as on the command line: ``12,14``, ``core_attn,mlp``."""
    if isinstance(value, frozenset):
        return ",".join(sorted(value)) or "none"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def has_placement(placement: str, run: TrainingRun) -> bool:
    """Whether the placement has as many stages per rank as the run."""
    if placement == "linear":
        return run.vp == 1
    return run.vp == 2 if placement == "v" else run.vp > 1


def passes_weights(run: TrainingRun) -> bool:
    """Whether ranks may pass weights: each has a microbatch, replicas hold whole stages, and one
    schedule with all its transfers is built within seconds."""
    few = run.pp * run.microbatches <= MOST_STREAMED
    return few and 1 < run.pp <= run.microbatches and run.sharding is not Sharding.FSDP
