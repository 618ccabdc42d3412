"""The profile: how long each stage computes, what it holds, and how far apart the ranks are.

Times are milliseconds, memory is bytes; any one consistent unit works.
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
_CAPPED = ("m_r", "m_o")  # by the part's M_B


@dataclass(frozen=True, slots=True)
class StageProfile:
    """One stage's times and sizes for one microbatch.

    ``t_f``, ``t_b``, ``t_w``: T_F, T_B, T_W; ``t_bw``: of a fused BW; None: T_B + T_W.
    ``m_b``: memory held from the start of F to the end of B; ``m_w``: what of it stays until W
    ends. ``t_fb``: of its F and its BW run at once, as one op (:mod:`..cost.overlap`); None: as
    long as one after the other. ``activation_bytes``: what this stage sends to the next one.
    Unknown sizes are None. ``layers``: those that it was cut from, where they are known.

    ``t_r``, ``m_r``: of a microbatch that is to be recomputed, how long that takes and what is held
    until then. ``m_o``: what stays on the device of one that is offloaded; ``offload_bytes``: what
    moves, each way (None: M_B less ``m_o``). None where the stage cannot.

    ``each``: the same of every microbatch where they are unlike; all else is their mean then.
    ``spread``: the relative standard deviation of its ops' times (:mod:`..cost.spread`); None where
    it is not known.
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
        """The stage of these microbatches: the one that they are all like, or their mean."""
        first = each[0]
        if all(one == first for one in each):
            return first
        return replace(first, **_means(each), each=tuple(each))

    def at(self, microbatch: int) -> StageProfile:
        """The times and sizes of one microbatch."""
        return self.each[microbatch] if self.each else self

    def changed(self, change: Callable[[StageProfile], StageProfile]) -> StageProfile:
        """``change`` of the stage, or of it for every microbatch."""
        return StageProfile.of(tuple(map(change, self.each))) if self.each else change(self)

    def scaled(self, by: float, keys: Iterable[str]) -> StageProfile:
        """The stage with the figures of these keys ``by`` times as large, where they are known."""
        figures = {key: getattr(self, key) for key in keys}
        known = {key: figure * by for key, figure in figures.items() if figure is not None}
        return replace(self, **known)

    @property
    def kept(self) -> float:
        """Memory that a microbatch which is recomputed holds until its R."""
        return self.m_b if self.m_r is None else self.m_r

    @property
    def fused(self) -> float:
        """How long B and W take as one op."""
        return self.t_b + self.t_w if self.t_bw is None else self.t_bw

    @property
    def moved(self) -> float:
        """Bytes out to the host, or back, where it is offloaded."""
        return self.m_b - (self.m_o or 0.0) if self.offload_bytes is None else self.offload_bytes

    @property
    def saving(self) -> float:
        """Time saved where its F and its BW run at once; negative where that takes longer."""
        return 0.0 if self.t_fb is None else self.t_f + self.fused - self.t_fb


def _means(each: Sequence[StageProfile]) -> dict[str, Any]:
    """The mean of each figure that is not the same of all, where all have it."""
    columns = {key.name: [getattr(one, key.name) for one in each] for key in fields(StageProfile)}
    unlike = {key: column for key, column in columns.items() if column.count(column[0]) < len(each)}
    return {key: math.fsum(column) / len(each) for key, column in unlike.items()}


@dataclass(frozen=True, slots=True)
class DataParallel:
    """``size`` replicas of the whole pipeline, the ranks of one number joined by ``link``.

    ``exposed``: the time of averaging that is not hidden behind ops, as a multiple of what the link
    takes for the gradients once; more than 1 where they are averaged several times.
    """

    size: int
    link: Link
    exposed: float = 1.0

    def time(self, gradient: float) -> float:
        """Milliseconds to average ``gradient`` bytes (:mod:`..cost.gradient_averaging`), as far as
        they are not hidden."""
        return self.exposed * 2 * (self.size - 1) * self.link.delay(gradient / self.size)


@dataclass(frozen=True, slots=True)
class Profile:
    """Times and sizes of a model's stages on a cluster; see ``docs/formats.md``.

    ``t_comm`` is one delay between any two different ranks or a full matrix (row: sender).
    ``memory_limit`` bounds activations, one number per rank; None is unlimited. ``host_link`` is
    each rank's own, as fast in both directions at once. ``tied``: groups of stages, each ascending,
    that share parameters. ``micro_batch``: sequences in the microbatches that were measured, None
    where it is not known. ``microbatches``: how many there are, where it has a number for each of
    them. ``max_stages``: the most stages that the model can be cut into; None where it is not
    known. ``barrier``: whether all ranks wait for each other before each optimizer step.
    A single entry of ``stages`` is shared by ``shared_by`` stages, by default one per rank, as in a
    file; once made, the stages are listed, and ``shared_by`` is 1.
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
        """How many stages there are, S."""
        return len(self.stages)

    @property
    def unlike(self) -> bool:
        """Whether microbatches differ on any stage."""
        return any(stage.each for stage in self.stages)

    def offload_time(self, stage: int, microbatch: int = 0) -> float | None:
        """How long the stage's activations take out to the host, or back; None where they stay."""
        of = self.stages[stage].at(microbatch)
        return None if self.host_link is None or of.m_o is None else self.host_link.delay(of.moved)

    def delays(self, size: float | None) -> FloatArray:
        """Delay from rank to rank (row: sender), shape (P, P), diagonal 0.

        ``t_comm`` where it is given, else what ``links`` need for a message of ``size`` bytes
        (an unknown size counts as 0), else 0.
        """
        if self.t_comm is None:
            return self.link_delays(size or 0.0)
        matrix = np.array(
            np.broadcast_to(np.asarray(self.t_comm, dtype=np.float64), (self.ranks, self.ranks))
        )
        np.fill_diagonal(matrix, 0.0)
        return matrix

    def link_delays(self, size: float) -> FloatArray:
        """Delay of a message of ``size`` bytes over ``links``, shape (P, P); 0 without links."""
        if self.links is None:
            return np.zeros((self.ranks, self.ranks))
        return self.links.delays(size, self.ranks)

    def wires(self, messages: Sequence[Pair]) -> list[tuple[str, ...]]:
        """The names of the wires that a message of each (from rank, to rank) occupies."""
        links = self.links
        if links is None:
            return [()] * len(messages)
        wires = cache(lambda source, target: links.wires(source, target, self.ranks))
        return [wires(*pair) for pair in messages]

    def wire_shares(self, messages: Sequence[Pair]) -> list[tuple[float, ...]]:
        """For how much of its time a message of each keeps each wire that it occupies."""
        links = self.links
        if links is None:
            return [()] * len(messages)
        shares = cache(lambda source, target: links.shares(source, target, self.ranks))
        return [shares(*pair) for pair in messages]

    def changed(self, change: Callable[[StageProfile], StageProfile]) -> Profile:
        """``change`` of each stage, or of it for every microbatch."""
        return replace(self, stages=tuple(stage.changed(change) for stage in self.stages))

    def split(self, chunks: int) -> Profile:
        """Each stage cut evenly into ``chunks`` consecutive ones; messages stay as large, and
        so does what is kept for recomputation or offload. The last stage sends nothing on: its
        chunks send each other as much as the stage receives. Which chunks of tied stages share
        parameters is not known: all of them are tied.

        Raises ValueError for fewer than one chunk, UnsupportedError for more than ``max_stages``
        stages.
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
        """Raises UnsupportedError, naming the profile as ``where``, where ``number`` stages are
        more than ``max_stages``."""
        if self.max_stages is not None and number > self.max_stages:
            file = f"{where}: " if where else ""
            raise UnsupportedError(
                f"{file}max_stages: expected at least {number}, one for each stage, got "
                f"{self.max_stages}: the model cannot be cut further"
            )

    @property
    def pairs_known(self) -> bool:
        """Whether it is known of every stage how long a pair takes."""
        return all(stage.t_fb is not None for stage in self.stages)

    def pair_time(self, forward: int, backward: int, first: int = 0, second: int = 0) -> float:
        """Duration of the F of one stage and the BW of another (or the same) run at once, of the
        ``first`` microbatch and the ``second``.

        The two save as much as the one of them that saves less, and take no less than either alone.
        """
        f, b = self.stages[forward].at(first), self.stages[backward].at(second)
        least = max(f.t_f, b.fused)
        return max(least, f.t_f + b.fused - min(f.saving, b.saving))

    def limit_from(self, limit: float | None) -> tuple[float, ...]:
        """One limit a rank: ``limit`` for all where given, else the profile's, else unlimited.

        Raises InputError where ``limit`` is no number or is negative.
        """
        if limit is not None:
            check_limit(limit)
            return (float(limit),) * self.ranks
        return self.memory_limit or (math.inf,) * self.ranks


def check_limit(limit: object) -> None:
    """Raises InputError for what is no memory limit: a number that is not negative, or infinity."""
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit >= 0:
        raise InputError(f"memory_limit: expected a number >= 0 or inf, got {limit!r}")


def _sending_like(stage: StageProfile, before: StageProfile) -> StageProfile:
    """``stage`` whose messages are as large as those of the one before, of each microbatch."""
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
