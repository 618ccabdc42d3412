"""One configuration of a model on a number of GPUs, and the families of schedules that are tried
for it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.placement import Placement, PlacementKind
from pipeloom.solver.families import find_family

from ..models.run import Recompute, Sharding, TrainingRun
from ..prediction.families import placement_of, schedule_of, splits, usable_families

PLACEMENTS = (PlacementKind.LINEAR, PlacementKind.INTERLEAVED, PlacementKind.V)
"""The kinds of placements of stages to try."""


@cache
def families_of(chunks: int) -> Mapping[PlacementKind, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return the families to try with ``chunks`` stages per rank, by placement.

    For each kind of placement, there is a pair: the names of the families with B and W as one op,
    and the names of those with separate B and W. Families whose order of ops depends on times are
    left out: they are slow to build, and the optimizer finds such orders.
    """
    found: dict[PlacementKind, tuple[list[str], list[str]]] = {}
    for name in usable_families():
        if find_family(name).by_times:
            continue
        with suppress(InputError):  # if it has another number of stages per rank
            kind = placement_of(name, 2, chunks).kind
            if kind in PLACEMENTS:
                split = splits(schedule_of(name, 2, chunks, 4))
                found.setdefault(kind, ([], []))[split].append(name)
    return {kind: (tuple(fused), tuple(split)) for kind, (fused, split) in found.items()}


@dataclass(frozen=True, slots=True)
class Configuration:
    """A configuration: settings of a training run, and the schedules that may be chosen for it.

    ``run``: the settings; its ``schedule`` determines the placement of stages. ``splits``: whether
    B and W are separate ops; otherwise they are one op. ``families``: names of the families to
    simulate; unless the user gave the schedule, the optimizer also searches for other orders of
    ops.
    """

    run: TrainingRun
    splits: bool
    families: tuple[str, ...]

    @property
    def placement(self) -> Placement:
        """The placement of stages on ranks."""
        return placement_of(self.run.schedule, self.run.pp, self.run.vp)

    @property
    def name(self) -> str:
        """The configuration in words, such as ``tp8 pp4 dp2 vp2 b1 full zero1``. Degrees of 1, and
        options whose value is ``none``, are omitted."""
        run = self.run
        degrees = [(key, getattr(run, key)) for key in ("tp", "pp", "dp", "cp", "ep", "vp")]
        words = [f"{key}{count}" for key, count in degrees if count > 1]
        words += [f"etp{run.etp}"] * (run.etp != run.tp) + [f"b{run.micro_batch}"]
        words += [run.recompute.value] * (run.recompute is not Recompute.NONE)
        words += [run.sharding.value] if run.sharding is not Sharding.NONE else []
        words += ["cut"] * (run.layers_per_stage is not None)
        words += ["v"] * (self.placement.kind is PlacementKind.V)
        return " ".join(words + ["B/W"] * self.splits)
