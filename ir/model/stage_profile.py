"""The times and sizes of one stage of a profile."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, ClassVar

from pydantic import Field, ValidationInfo

from ..documents.fields import Cost, Each, MaybeEach
from ..documents.struct import IN_MEMORY, Struct
from ..documents.validation import DocumentFault, raise_faults, said, wrong
from ..units import counted
from .layers import Layer

EACH = (
    *("t_f", "t_b", "t_w", "t_bw", "t_r", "m_b", "m_w", "m_r", "m_o"),
    *("activation_bytes", "offload_bytes"),
)
"""The fields that can be lists with one number per microbatch in files."""

_DIVIDED = (
    *("t_f", "t_b", "t_w", "t_fb", "t_r", "t_bw", "m_b", "m_w"),
    *("weight_bytes", "grad_bytes", "optimizer_bytes", "offload_bytes"),
)
_CAPPED = ("m_r", "m_o")  # not divided, but reduced to the part's M_B if they exceed it


@dataclass(frozen=True, slots=True)
class StageProfile(Struct):
    """Times and sizes of one stage for one microbatch.

    ``t_f``, ``t_b``, ``t_w``: T_F, T_B, T_W in ms. ``t_bw``: time of a BW op; None means T_B + T_W.
    ``t_fb``: time of an F and a BW that run at the same time as a pair (:mod:`..cost.overlap`);
    None means that a pair takes as long as its two ops one after the other. ``m_b``: memory held
    from the start of F to the end of B. ``m_w``: the part of ``m_b`` that is held until the end of
    W. ``activation_bytes``: size of the stage's output. Unknown sizes are None. ``layers``: the
    layers that the stage consists of, if known.

    For recomputation, ``t_r`` is the time of R, and ``m_r`` the memory held from F to the start of
    R; both are None if the stage cannot be recomputed. For offload, ``m_o`` is the memory that
    stays on the device between O and L, None if the stage cannot be offloaded, and
    ``offload_bytes`` is the number of bytes copied in each direction (None means M_B - ``m_o``).

    ``each``: one profile per microbatch if microbatches differ, otherwise empty. The fields of this
    profile are then the means over the microbatches, and in files the keys in :data:`EACH` are
    lists.
    """

    REQUIRED: ClassVar[tuple[str, ...]] = ("m_b", "m_w")

    t_f: Annotated[Each, Field(description="ms of the forward of a microbatch")]
    t_b: Annotated[Each, Field(description="ms of its backward to the input")]
    t_w: Annotated[Each, Field(description="ms of its backward to the weights, 0 if in t_b")]
    m_b: Annotated[Each, Field(description="memory held from its F to its B")] = 1.0
    m_w: Annotated[Each, Field(description="the part of m_b still held from B to W")] = 0.0
    activation_bytes: MaybeEach = None
    weight_bytes: Cost | None = None
    grad_bytes: Cost | None = None
    optimizer_bytes: Cost | None = None
    t_fb: Cost | None = None
    layers: tuple[Layer, ...] = ()
    t_r: MaybeEach = None
    m_r: MaybeEach = None
    m_o: MaybeEach = None
    offload_bytes: MaybeEach = None
    t_bw: MaybeEach = None
    each: Annotated[tuple[StageProfile, ...], IN_MEMORY] = ()

    def _after(self, info: ValidationInfo) -> StageProfile:
        """Return the stage, with one profile per microbatch if at least one field is a list.

        All lists must be equally long.
        """
        if (self.t_r is None) != (self.m_r is None):
            given, absent = ("t_r", "m_r") if self.m_r is None else ("m_r", "t_r")
            raise_faults([DocumentFault((absent,), said(f"missing; expected it with {given}"))])
        lists = {key: value for key in EACH if isinstance(value := getattr(self, key), list)}
        each: Sequence[StageProfile] = [self]
        if lists:
            context = {} if info.context is None else info.context
            number = context.setdefault("each", len(next(iter(lists.values()))))
            line = f"expected a number, or a list of {number} as before, one per microbatch, got"
            raise_faults(
                DocumentFault((key,), said(f"{line} {counted(len(value), 'number')}"))
                for key, value in lists.items()
                if len(value) != number
            )
            rows = ({key: value[j] for key, value in lists.items()} for j in range(number))
            each = [replace(self, **row) for row in rows]
        for key in ("m_w", "m_r", "m_o"):
            most = next((one.m_b for one in each if (getattr(one, key) or 0.0) > one.m_b), None)
            if most is not None:
                raise_faults(
                    [DocumentFault((key,), wrong(f"at most m_b ({most:g})"), getattr(self, key))]
                )
        return StageProfile.of(each)

    def values(self) -> dict[str, Any]:
        return Struct.values(self) | {key: self._figure(key) for key in EACH}

    def _figure(self, key: str) -> Any:
        """The value of field ``key`` in files: a number, or one per microbatch if they differ."""
        each = [getattr(one, key) for one in self.each]
        return each if len(set(each)) > 1 else getattr(self.at(0), key)

    @classmethod
    def of(cls, each: Sequence[StageProfile]) -> StageProfile:
        """Combine ``each``, the profiles of one stage for each microbatch, into one profile.

        If all are equal, the result is ``each[0]``. Otherwise its fields are their means, and its
        ``each`` contains all of them.
        """
        first = each[0]
        if all(one == first for one in each):
            return first
        return replace(first, **_means(each), each=tuple(each))

    def at(self, microbatch: int) -> StageProfile:
        """The stage's profile for ``microbatch``; if microbatches are alike, the stage itself."""
        return self.each[microbatch] if self.each else self

    def changed(self, change: Callable[[StageProfile], StageProfile]) -> StageProfile:
        """The stage with ``change`` applied to it, or to each microbatch if microbatches differ."""
        return StageProfile.of(tuple(map(change, self.each))) if self.each else change(self)

    def scaled(self, by: float, keys: Iterable[str]) -> StageProfile:
        """The stage with the fields ``keys`` multiplied by ``by``; None stays None."""
        figures = {key: getattr(self, key) for key in keys}
        known = {key: figure * by for key, figure in figures.items() if figure is not None}
        return replace(self, **known)

    @property
    def kept(self) -> float:
        """Memory that a recomputed microbatch holds from its F to its R; M_B if ``m_r`` is None."""
        return self.m_b if self.m_r is None else self.m_r

    @property
    def fused(self) -> float:
        """Time of a BW op, in ms: ``t_bw``, or T_B + T_W if it is None."""
        return self.t_b + self.t_w if self.t_bw is None else self.t_bw

    @property
    def moved(self) -> float:
        """Bytes that are copied to the host, and the same number back, to offload a microbatch."""
        return self.m_b - (self.m_o or 0.0) if self.offload_bytes is None else self.offload_bytes

    @property
    def saving(self) -> float:
        """Time in ms that an F and a BW save if they run as a pair, not one after the other.

        It is 0 without ``t_fb``, and negative if the pair takes longer.
        """
        return 0.0 if self.t_fb is None else self.t_f + self.fused - self.t_fb


def _means(each: Sequence[StageProfile]) -> dict[str, Any]:
    """For each field in which the profiles differ, by name, its mean over all profiles."""
    columns = {key.name: [getattr(one, key.name) for one in each] for key in fields(StageProfile)}
    unlike = {key: column for key, column in columns.items() if column.count(column[0]) < len(each)}
    return {key: math.fsum(column) / len(each) for key, column in unlike.items()}


def sending_like(stage: StageProfile, before: StageProfile) -> StageProfile:
    """``stage`` with the ``activation_bytes`` of the stage ``before``, for each microbatch."""
    number = max(len(stage.each), len(before.each), 1)
    return StageProfile.of(
        [
            replace(stage.at(j), activation_bytes=before.at(j).activation_bytes)
            for j in range(number)
        ]
    )


def part_of(stage: StageProfile, share: float) -> StageProfile:
    """A part of the stage, with the fraction ``share`` of its times and memory.

    Message sizes, ``m_r`` and ``m_o`` are not divided, but the latter two are at most the part's
    M_B. The part has no ``layers``.
    """
    part = stage.scaled(share, _DIVIDED)
    sizes = {key: getattr(stage, key) for key in _CAPPED}
    kept = {key: min(size, part.m_b) for key, size in sizes.items() if size is not None}
    return replace(part, **kept, layers=())
