"""The profile: times and sizes of a model's stages, and the links between ranks.

Times are milliseconds, memory is bytes; any consistent unit works.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import numpy as np

from ..errors import InputError, UnsupportedError
from .layers import Layer
from .links import Link, Links, Pair, Sharing
from .ops import FloatArray

__all__ = ["DataParallel", "Link", "Links", "Profile", "Sharing", "StageProfile"]


_DIVIDED = (
    *("t_f", "t_b", "t_w", "t_fb", "t_r", "t_bw", "m_b", "m_w"),
    *("weight_bytes", "grad_bytes", "optimizer_bytes", "offload_bytes"),
)
_CAPPED = ("m_r", "m_o")  # at most the part's M_B


@dataclass(frozen=True, slots=True)
class StageProfile:
    """Times and sizes of one stage for one microbatch.

    ``t_f``, ``t_b``, ``t_w``: T_F, T_B, T_W. ``t_bw``: time of a BW op; None: T_B + T_W. ``t_fb``:
    time of F and BW run at once, as one op (:mod:`..cost.overlap`); None: they take as long as one
    after the other. ``m_b``: memory held from the start of F to the end of B. ``m_w``: the part of
    it that is held until the end of W. ``activation_bytes``: size of the stage's output. Unknown
    sizes are None. ``layers``: the layers that the stage consists of, if known.

    For recomputation, ``t_r`` is the time of R, and ``m_r`` the memory held from F to the start of
    R. For offload, ``m_o`` is the memory that stays on the device, and ``offload_bytes`` the bytes
    moved, each way (None: M_B - ``m_o``). ``t_r`` or ``m_o`` is None if the stage cannot be
    recomputed or offloaded.

    ``each``: one profile per microbatch if microbatches differ; the other fields are then their
    means. ``spread``: relative standard deviation of the op times (:mod:`..cost.spread`), if known.
    """

    t_f: float
    t_b: float
    t_w: float
    m_b: float = 1.0
    m_w: float = 0.0
    activation_bytes: float | None = None
    weight_bytes: float | None = None
    grad_bytes: float | None = None
    optimizer_bytes: float | None = None
    t_fb: float | None = None
    layers: tuple[Layer, ...] = ()
    t_r: float | None = None
    m_r: float | None = None
    m_o: float | None = None
    offload_bytes: float | None = None
    t_bw: float | None = None
    each: tuple[StageProfile, ...] = ()
    spread: float | None = None

    @classmethod
    def of(cls, each: Sequence[StageProfile]) -> StageProfile:
        """The stage of these microbatches; their numbers are kept in ``each`` if they differ."""
        first = each[0]
        if all(one == first for one in each):
            return first
        return replace(first, **_means(each), each=tuple(each))

    def at(self, microbatch: int) -> StageProfile:
        """The stage's profile for one microbatch."""
        return self.each[microbatch] if self.each else self

    def changed(self, change: Callable[[StageProfile], StageProfile]) -> StageProfile:
        """The stage with ``change`` applied, for each microbatch if microbatches differ."""
        return StageProfile.of(tuple(map(change, self.each))) if self.each else change(self)

    def scaled(self, by: float, keys: Iterable[str]) -> StageProfile:
        """The stage with the fields ``keys`` multiplied by ``by``; unknown values stay unknown."""
        figures = {key: getattr(self, key) for key in keys}
        known = {key: figure * by for key, figure in figures.items() if figure is not None}
        return replace(self, **known)

    @property
    def kept(self) -> float:
        """Memory that a recomputed microbatch holds from its F to its R."""
        return self.m_b if self.m_r is None else self.m_r

    @property
    def fused(self) -> float:
        """Time of B and W as one op."""
        return self.t_b + self.t_w if self.t_bw is None else self.t_bw

    @property
    def moved(self) -> float:
        """Bytes moved to the host, and back, if a microbatch is offloaded."""
        return self.m_b - (self.m_o or 0.0) if self.offload_bytes is None else self.offload_bytes

    @property
    def saving(self) -> float:
        """Time saved by running F and BW at once; negative if that takes longer."""
        return 0.0 if self.t_fb is None else self.t_f + self.fused - self.t_fb


def _means(each: Sequence[StageProfile]) -> dict[str, Any]:
    """The mean of each field that differs between the profiles."""
    columns = {key.name: [getattr(one, key.name) for one in each] for key in fields(StageProfile)}
    unlike = {key: column for key, column in columns.items() if column.count(column[0]) < len(each)}
    return {key: math.fsum(column) / len(each) for key, column in unlike.items()}


@dataclass(frozen=True, slots=True)
class DataParallel:
    """Data parallelism: ``size`` replicas of the pipeline; ``link`` joins ranks of the same number.

    ``exposed``: the averaging time that ops do not hide, as a multiple of one all-reduce of the
    gradients over the link; above 1 if they are averaged several times.
    """

    size: int
    link: Link
    exposed: float = 1.0

    def time(self, gradient: float) -> float:
        """The exposed part, in milliseconds, of a ring all-reduce of ``gradient`` bytes.

        See :mod:`..cost.gradient_averaging`.
        """
        return self.exposed * 2 * (self.size - 1) * self.link.delay(gradient / self.size)


@dataclass(frozen=True, slots=True)
class Profile:
    """Times and sizes of a model's stages on a cluster; see ``docs/formats.md``.

    - ``stages``: a single entry is repeated ``shared_by`` times, by default once per rank. After
      construction ``stages`` is complete and ``shared_by`` is 1.
    - ``t_comm``: one delay between any two ranks, or a matrix (row: sender).
    - ``memory_limit``: limit of activations, one number per rank; None is unlimited.
    - ``device_memory``: limit of all memory of the device, one number per rank; None is unlimited.
    - ``host_link``: each rank's own link to the host, equally fast in both directions at once.
    - ``tied``: groups of stages, each ascending, that share parameters.
    - ``micro_batch``: sequences per measured microbatch, if known.
    - ``microbatches``: the number of microbatches, if the profile has a number for each of them.
    - ``max_stages``: the largest number of stages that the model can be cut into, if known.
    - ``barrier``: whether all ranks wait for each other before each optimizer step.
    """

    stages: tuple[StageProfile, ...]
    ranks: int
    t_comm: float | tuple[tuple[float, ...], ...] | None = None
    links: Links | None = None
    memory_limit: tuple[float, ...] | None = None
    device_memory: tuple[float, ...] | None = None
    name: str = ""
    host_link: Link | None = None
    data_parallel: DataParallel | None = None
    tied: tuple[tuple[int, ...], ...] = ()
    micro_batch: int | None = None
    microbatches: int | None = None
    max_stages: int | None = None
    barrier: bool = False
    shared_by: int | None = None

    def __post_init__(self) -> None:
        if len(self.stages) == 1:
            number = self.ranks if self.shared_by is None else self.shared_by
            object.__setattr__(self, "stages", self.stages * number)
        object.__setattr__(self, "shared_by", 1)

    @property
    def num_stages(self) -> int:
        """The number of stages, S."""
        return len(self.stages)

    @property
    def unlike(self) -> bool:
        """Whether microbatches differ in any stage."""
        return any(stage.each for stage in self.stages)

    def offload_time(self, stage: int, microbatch: int = 0) -> float | None:
        """Milliseconds to copy the stage's activations to the host, or back; None if it cannot
        offload."""
        of = self.stages[stage].at(microbatch)
        return None if self.host_link is None or of.m_o is None else self.host_link.delay(of.moved)

    def delays(self, size: float | None) -> FloatArray:
        """Delay in ms of a message of ``size`` bytes from rank (row) to rank, (P, P), diagonal 0.

        ``t_comm`` if it is given, otherwise from ``links`` (an unknown size counts as 0), otherwise
        0.
        """
        if self.t_comm is None:
            return self.link_delays(size or 0.0)
        matrix = np.array(
            np.broadcast_to(np.asarray(self.t_comm, dtype=np.float64), (self.ranks, self.ranks))
        )
        np.fill_diagonal(matrix, 0.0)
        return matrix

    def link_delays(self, size: float) -> FloatArray:
        """Delay in ms of ``size`` bytes over ``links``, shape (P, P); 0 without links."""
        if self.links is None:
            return np.zeros((self.ranks, self.ranks))
        return self.links.delays(size, self.ranks)

    def wires(self, messages: Sequence[Pair]) -> list[tuple[str, ...]]:
        """The wires, by name, that a message between each (source rank, target rank) occupies."""
        links = self.links
        if links is None:
            return [()] * len(messages)
        wires = cache(lambda source, target: links.wires(source, target, self.ranks))
        return [wires(*pair) for pair in messages]

    def wire_shares(self, messages: Sequence[Pair]) -> list[tuple[float, ...]]:
        """For each (source, target), the fraction of its time that a message occupies each wire."""
        links = self.links
        if links is None:
            return [()] * len(messages)
        shares = cache(lambda source, target: links.shares(source, target, self.ranks))
        return [shares(*pair) for pair in messages]

    def changed(self, change: Callable[[StageProfile], StageProfile]) -> Profile:
        """The profile with ``change`` applied to each stage (:meth:`StageProfile.changed`)."""
        return replace(self, stages=tuple(stage.changed(change) for stage in self.stages))

    def split(self, chunks: int) -> Profile:
        """The profile with each stage cut evenly into ``chunks`` consecutive stages.

        Times and memory are divided. Message sizes, ``m_r`` and ``m_o`` are not (the latter two are
        at most the chunk's M_B). The last stage has no output: its chunks send each other as much
        as the stage receives. All chunks of tied stages are tied, as it is unknown which of them
        share parameters.

        Raises ValueError if ``chunks`` is below 1, and UnsupportedError if there would be more than
        ``max_stages`` stages.
        """
        if chunks < 1:
            raise ValueError(f"cannot cut a stage into {chunks} chunks")
        self.check_stages(self.num_stages * chunks)
        parts = self.changed(lambda stage: _part(stage, 1.0 / chunks)).stages
        if chunks > 1 and len(parts) > 1:
            parts = (*parts[:-1], _sending_like(parts[-1], parts[-2]))
        stages = tuple(part for part in parts for _ in range(chunks))
        tied = tuple(
            tuple(stage * chunks + chunk for stage in group for chunk in range(chunks))
            for group in self.tied
        )
        return replace(self, stages=stages, tied=tied)

    def check_stages(self, number: int, where: str = "") -> None:
        """Raise UnsupportedError if ``number`` exceeds ``max_stages``; ``where`` names the file."""
        if self.max_stages is not None and number > self.max_stages:
            file = f"{where}: " if where else ""
            raise UnsupportedError(
                f"{file}max_stages: expected at least {number}, one for each stage, got "
                f"{self.max_stages}: the model cannot be cut further"
            )

    @property
    def pairs_known(self) -> bool:
        """Whether every stage has a time for F and BW run at once."""
        return all(stage.t_fb is not None for stage in self.stages)

    def pair_time(self, forward: int, backward: int, first: int = 0, second: int = 0) -> float:
        """Time of the F of stage ``forward`` and the BW of stage ``backward`` run at once.

        ``first`` and ``second`` are the microbatches of the F and of the BW. The pair saves the
        smaller of the two stages' savings, and takes no less time than either op by itself.
        """
        f, b = self.stages[forward].at(first), self.stages[backward].at(second)
        least = max(f.t_f, b.fused)
        return max(least, f.t_f + b.fused - min(f.saving, b.saving))

    def limit_from(self, limit: float | None) -> tuple[float, ...]:
        """The memory limit of each rank, (P,): ``limit``, else the profile's, else ``math.inf``.

        Raises InputError if ``limit`` is not a number or is negative.
        """
        if limit is not None:
            check_limit(limit)
            return (float(limit),) * self.ranks
        return self.memory_limit or (math.inf,) * self.ranks


def check_limit(limit: object) -> None:
    """Raise InputError unless ``limit`` is a number >= 0 or infinity."""
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit >= 0:
        raise InputError(f"memory_limit: expected a number >= 0 or inf, got {limit!r}")


def _sending_like(stage: StageProfile, before: StageProfile) -> StageProfile:
    """``stage`` with the message sizes of the stage ``before``, for each microbatch."""
    number = max(len(stage.each), len(before.each), 1)
    return StageProfile.of(
        [
            replace(stage.at(j), activation_bytes=before.at(j).activation_bytes)
            for j in range(number)
        ]
    )


def _part(stage: StageProfile, share: float) -> StageProfile:
    part = stage.scaled(share, _DIVIDED)
    sizes = {key: getattr(stage, key) for key in _CAPPED}
    kept = {key: min(size, part.m_b) for key, size in sizes.items() if size is not None}
    return replace(part, **kept, layers=())
