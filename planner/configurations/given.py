"""The part of a plan that is given and not chosen: keys of the run, schedule, passing, offload.

All faults of what is given are told at once, whatever else is chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Self

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.placement import Passing
from pipeloom.solver.families import FAMILIES

from ..clusters.cluster import Cluster
from ..inputs.words import memory_limit_of
from ..models.model import Model
from ..models.reading import ModelLike, read_model
from ..models.run import KEYS, TrainingRun, plain_fields, without_ends
from ..models.run_faults import faults_of
from ..models.words import RunValues
from ..prediction.memory import GIB
from ..prediction.schedule_word import check_schedule
from ..prediction.setup import check_precision, order_of, usual
from .configuration import AUTO, MOST_STREAMED

DEGREES = ("tp", "pp", "vp", "dp", "cp", "ep", "etp", "micro_batch")
_NEEDED = ("gpus", "global_batch")


@dataclass(frozen=True)
class Given:
    """The given part of a plan: the run ``base``, of which degrees, batch and levels are chosen.

    ``fixed``: the keys that are given, checked; ``family``: the schedule that is, None: any.
    ``remat``: schedules of configurations that recompute nothing else may recompute whole stages;
    ``offload``: schedules of pipelines may offload them. ``passing``: what pipelines send,
    ``activations``, ``weights`` or, ``auto``, either. ``headroom``: GiB that plans leave free on
    each device, which the ``cluster``'s memory is without.
    """

    model: Model
    cluster: Cluster
    base: TrainingRun
    fixed: Mapping[str, Any]
    family: str | None
    remat: bool = False
    offload: bool = False
    passing: str = Passing.ACTIVATIONS.value
    headroom: float = 0.0

    @property
    def device_gib(self) -> float:
        """The memory of a device, GiB."""
        return self.cluster.gpu.memory_gib + self.headroom

    @classmethod
    def of(cls, model: ModelLike, cluster: Cluster, given: Mapping[str, Any]) -> Self:
        """Raises InputError, with a line for each fault of what is given."""
        known, remat = read_model(model), given.get("recompute") == AUTO
        offload = given.get("offload") or "none"
        passing = given.get("passing") or Passing.ACTIVATIONS.value
        headroom = _headroom(given.get("headroom"), cluster)
        left_out = {"offload", "passing", "headroom", *(["recompute"] if remat else [])}
        given = {key: value for key, value in given.items() if key not in left_out}
        values = RunValues(usual(known) | given, KEYS)
        for key in _NEEDED:
            if not values.has(key):
                values.faults.append(f"{key}: missing; expected a whole number >= 1")
        if remat and _family(given) is not None:
            words = "none, selective or full with a schedule that is given"
            values.faults.append(f"recompute: expected {words}, got {AUTO}")
        values.faults += _faults_of_offload(offload, cluster, _family(given))
        others = {"recompute": remat, "offload": offload == AUTO, "schedule": _family(given)}
        values.faults += _faults_of_passing(passing, [key for key, on in others.items() if on])
        plain = plain_fields(values, known)
        fixed: dict[str, Any] = {
            key: values.whole(key, default=1) for key in DEGREES if values.has(key)
        }
        whole = {key: values.whole(key, default=1) for key in _NEEDED}
        for key in ("recompute", "sharding", "layers_per_stage"):
            if values.has(key):
                fixed[key] = plain[key]
        if "layers_per_stage" in fixed:
            fixed["layers_per_stage"] = without_ends(plain["layers_per_stage"], plain["layers"])
        if values.has("sequence_parallel"):
            fixed["sequence_parallel"] = values.flag("sequence_parallel", default=True)
        values.raise_faults()
        base = TrainingRun(**plain | {"tp": 1, "pp": 1, "cp": 1, "ep": 1} | whole)
        check_precision(base.precision, cluster)
        base = replace(base, layers_per_stage=None)
        gpu = replace(cluster.gpu, memory_gib=cluster.gpu.memory_gib - headroom)
        how = remat, offload == AUTO, passing, headroom
        found = cls(known, replace(cluster, gpu=gpu), base, fixed, _family(given), *how)
        if lines := dict.fromkeys(found._faults()):
            raise InputError(*lines)
        return found

    @property
    def activations(self) -> bool:
        """Whether configurations may pass activations, or have no pipeline."""
        return self.passing != Passing.WEIGHTS.value

    @property
    def weights(self) -> bool:
        """Whether pipelines may pass weights."""
        return self.passing != Passing.ACTIVATIONS.value

    @property
    def words(self) -> str:
        """All that is fixed; empty where nothing is."""
        words = [f"{key} {_said(value)}" for key, value in self.fixed.items()]
        words += [] if self.family is None else [f"schedule {self.family}"]
        if not self.activations:
            words.append(f"passing weights (at most {MOST_STREAMED} pairs of stage and microbatch)")
        return ", ".join(words)

    def _faults(self) -> Iterator[str]:
        """Faults of what is fixed, whatever else is chosen."""
        if self.family is not None:
            yield from _faults_of_family(replace(self.base, pp=2, schedule=self.family))
        product = 1
        for key in ("tp", "pp", "cp", "dp"):
            product *= self.fixed.get(key, 1)
        if self.base.gpus % product:
            words = " x ".join(
                f"{k} {self.fixed[k]}" for k in ("tp", "pp", "cp", "dp") if k in self.fixed
            )
            yield f"gpus: expected a multiple of {words}, got {self.base.gpus}"
        batch = self.fixed.get("dp", 1) * self.fixed.get("micro_batch", 1)
        if self.base.global_batch % batch:
            words = f"a multiple of dp x micro_batch = {batch}"
            yield f"global_batch: expected {words}, got {self.base.global_batch}"
        if counts := self.fixed.get("layers_per_stage"):
            alone = replace(self.base, pp=len(counts), layers_per_stage=counts)
            for line in faults_of(alone, self.model):
                if line.startswith("layers_per_stage"):
                    yield line
        degrees = {
            key: self.fixed[key] for key in ("tp", "pp", "vp", "cp", "ep") if key in self.fixed
        }
        etp = self.fixed.get("etp", degrees.get("tp", 1))
        alone = self._parallel(replace(self.base, etp=etp, **degrees))
        for line in faults_of(alone, self.model):
            key = line.partition(":")[0]
            if (
                key in {"tp", "etp", "pp", "layers", "recompute", "seq", "attention"}
                or (key == "ep" and "x etp" not in line)
                or (key == "vp" and "pp" in self.fixed)
            ):
                yield line

    def _parallel(self, run: TrainingRun) -> TrainingRun:
        wanted = self.fixed.get("sequence_parallel", True)
        return replace(run, sequence_parallel=wanted and run.tp > 1)


def _headroom(given: float | str | None, cluster: Cluster) -> float:
    """GiB that plans leave free. Raises InputError for what is no size, or all of a device."""
    size = (memory_limit_of(given, name="headroom") or 0.0) / GIB
    if size == inf:  # none
        return 0.0
    if 0 < size < 1e-3:
        raise InputError(f"headroom: expected a size such as 4GB, got {given:g} bytes")
    if size >= cluster.gpu.memory_gib:
        device = f"{cluster.gpu.memory_gib:g} GiB of {cluster.gpu.name}"
        raise InputError(f"headroom: expected less than the {device}, got {size:.4g} GiB")
    return size


def _faults_of_family(run: TrainingRun) -> list[str]:
    """Whether its stages wander, or are updated more than once a step."""
    try:
        order_of(replace(run, global_batch=4, dp=1, micro_batch=1))
    except InputError as error:
        return [line for line in error.errors if "expected a family whose" in line]
    return []


def _faults_of_offload(given: Any, cluster: Cluster, family: str | None) -> Iterator[str]:
    if given not in ("none", AUTO):
        yield f"offload: expected none or {AUTO}, got {given!r:.60}"
    elif given == AUTO and cluster.host is None:
        yield f"offload: expected none where the cluster has no host link, got {AUTO}"
    elif given == AUTO and family is not None:
        yield f"offload: expected none with a schedule that is given, got {AUTO}"


def _faults_of_passing(given: Any, others: Sequence[str]) -> Iterator[str]:
    words = [Passing.ACTIVATIONS.value, Passing.WEIGHTS.value, AUTO]
    if given not in words:
        yield f"passing: expected {words[0]}, {words[1]} or {AUTO}, got {given!r:.60}"
    elif given != words[0] and others:
        beside = {"schedule": "a schedule that is given"}.get(others[0], f"{others[0]} {AUTO}")
        yield f"passing: expected {words[0]} with {beside}, got {given}"


def _said(value: Any) -> str:
    """A value that is fixed, in words."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "+".join(sorted(value)) or "none" if isinstance(value, frozenset) else str(value)


def _family(given: Mapping[str, Any]) -> str | None:
    """The family that is given, None where any schedule is meant."""
    name = given.get("schedule")
    check_schedule(name)
    if isinstance(name, str) and name.lower().partition(":")[0] in FAMILIES:
        return name.lower()
    return None
