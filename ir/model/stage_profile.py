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
from ..errors import show
from ..units import counted
from .layers import Layer

EACH = (
    *("t_f", "t_b", "t_w", "t_bw", "t_r", "m_b", "m_w", "m_r", "m_o"),
    *("activation_bytes", "offload_bytes"),
)
"""Keys that can be lists with one number per microbatch."""

_DIVIDED = (
    *("t_f", "t_b", "t_w", "t_fb", "t_r", "t_bw", "m_b", "m_w"),
    *("weight_bytes", "grad_bytes", "optimizer_bytes", "offload_bytes"),
)
_CAPPED = ("m_r", "m_o")  # at most the part's M_B


@dataclass(frozen=True, slots=True)
class StageProfile(Struct):
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
    means. In files, the keys in :data:`EACH` are then lists. ``spread``: relative standard
    deviation of the op times (:mod:`..cost.spread`), if known.
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
    spread: Annotated[float | None, IN_MEMORY] = None

    @classmethod
    def _before(cls, data: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if data.get("spread") is not None:
            line = "expected it beside stages or layers, a number or one each"
            raise_faults([DocumentFault(("spread",), said(f"{line}, got {show(data['spread'])}"))])
        return data

    def _after(self, info: ValidationInfo) -> StageProfile:
        """Make a profile for each microbatch of the lists, which all must be equally long."""
        if (self.t_r is None) != (self.m_r is None):
            given, absent = ("t_r", "m_r") if self.m_r is None else ("m_r", "t_r")
            raise_faults([DocumentFault((absent,), said(f"missing; expected it beside {given}"))])
        lists = {key: value for key in EACH if isinstance(value := getattr(self, key), list)}
        each: Sequence[StageProfile] = [self]
        if lists:
            number = (info.context or {}).setdefault("each", len(next(iter(lists.values()))))
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
        """One number, or one per microbatch if they differ."""
        each = [getattr(one, key) for one in self.each]
        return each if len(set(each)) > 1 else getattr(self.at(0), key)

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


def sending_like(stage: StageProfile, before: StageProfile) -> StageProfile:
    """``stage`` with the message sizes of the stage ``before``, for each microbatch."""
    number = max(len(stage.each), len(before.each), 1)
    return StageProfile.of(
        [
            replace(stage.at(j), activation_bytes=before.at(j).activation_bytes)
            for j in range(number)
        ]
    )


def part_of(stage: StageProfile, share: float) -> StageProfile:
    """A share of the stage. Message sizes stay, and ``m_r`` and ``m_o`` are at most its M_B."""
    part = stage.scaled(share, _DIVIDED)
    sizes = {key: getattr(stage, key) for key in _CAPPED}
    kept = {key: min(size, part.m_b) for key, size in sizes.items() if size is not None}
    return replace(part, **kept, layers=())
