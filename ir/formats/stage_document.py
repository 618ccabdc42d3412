"""The format of a profile's stages and layers: their costs and names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationInfo,
    field_validator,
    model_validator,
)

from ..units import counted
from .fields import MOST_LAYERS, Cost, Name
from .json_reader import show
from .validation import Document, DocumentFault, Expected, Whole, raise_faults, said, wrong

_COST, _COSTS = TypeAdapter(Cost), TypeAdapter(list[Cost])


def _costs(value: Any) -> float | list[float]:
    """One number, or one per microbatch."""
    if not isinstance(value, list):
        return _COST.validate_python(value)
    if not value:
        raise wrong("a finite number >= 0, or a list of them, one per microbatch")
    return _COSTS.validate_python(value)


def _maybe_costs(value: Any) -> float | list[float] | None:
    return None if value is None else _costs(value)


def _side_by_side(
    one: float | list[float], other: float | list[float]
) -> Iterator[tuple[float, float]]:
    """Pairs of two keys' numbers, one per microbatch if either is a list."""
    number = max(len(each) if isinstance(each, list) else 1 for each in (one, other))
    rows = (each if isinstance(each, list) else [each] * number for each in (one, other))
    return zip(*rows, strict=False)


Costs: TypeAlias = Annotated[float | list[float], PlainValidator(_costs)]
MaybeCosts: TypeAlias = Annotated[float | list[float] | None, PlainValidator(_maybe_costs)]


class LayerDocument(Document):
    """A layer; ``modules`` defaults to a single module with the layer's name."""

    name: Name
    kind: Literal["embedding", "block", "mtp", "head", "loss"] | None = None
    modules: Annotated[list[Name] | None, Expected("a list of names")] = None

    @property
    def module_names(self) -> list[str]:
        return [self.name] if self.modules is None else self.modules


EACH = (
    *("t_f", "t_b", "t_w", "t_bw", "t_r", "m_b", "m_w", "m_r", "m_o"),
    *("activation_bytes", "offload_bytes"),
)
"""Keys that can be lists with one number per microbatch."""


class CostDocument(Document):
    """Times in ms, memory in the profile's unit, and message sizes in bytes; null if unknown.

    The keys in :data:`EACH` can be lists with one number per microbatch, all of the same length.
    """

    t_f: Annotated[Costs, Field(description="ms of the forward of a microbatch")]
    t_b: Annotated[Costs, Field(description="ms of its backward to the input")]
    t_w: Annotated[Costs, Field(description="ms of its backward to the weights, 0 if in t_b")]
    t_fb: Cost | None = None
    m_b: Annotated[Costs, Field(description="memory held from its F to its B")]
    m_w: Annotated[Costs, Field(description="the part of m_b still held from B to W")]
    activation_bytes: MaybeCosts = None
    weight_bytes: Cost | None = None
    grad_bytes: Cost | None = None
    optimizer_bytes: Cost | None = None
    t_bw: MaybeCosts = None
    t_r: MaybeCosts = None
    m_r: MaybeCosts = None
    m_o: MaybeCosts = None
    offload_bytes: MaybeCosts = None

    @field_validator("m_w", "m_r", "m_o")
    @classmethod
    def _within_m_b(
        cls, value: float | list[float] | None, info: ValidationInfo
    ) -> float | list[float] | None:
        most = info.data.get("m_b")
        for given, bound in () if value is None or most is None else _side_by_side(value, most):
            if given > bound:
                raise wrong(f"at most m_b ({bound:g})")
        return value

    @model_validator(mode="after")
    def _recomputed(self) -> CostDocument:
        """``t_r`` and ``m_r`` must be given together."""
        if (self.t_r is None) != (self.m_r is None):
            given, absent = ("t_r", "m_r") if self.m_r is None else ("m_r", "t_r")
            raise_faults([DocumentFault((absent,), said(f"missing; expected it beside {given}"))])
        return self

    @model_validator(mode="after")
    def _as_long(self, info: ValidationInfo) -> CostDocument:
        """All lists of a profile must have the length of the first one."""
        lengths = {key: len(value) for key in EACH if isinstance(value := getattr(self, key), list)}
        if lengths and info.context is not None:
            number = info.context.setdefault("each", next(iter(lengths.values())))
            line = f"expected a number, or a list of {number} as before, one per microbatch, got"
            raise_faults(
                DocumentFault((key,), said(f"{line} {counted(length, 'number')}"))
                for key, length in lengths.items()
                if length != number
            )
        return self

    @property
    def microbatches(self) -> int | None:
        """The length of its lists; None if there are none."""
        lists = (value for key in EACH if isinstance(value := getattr(self, key), list))
        return next(map(len, lists), None)


def _beside(value: Any) -> None:
    if value is not None:
        line = "expected it beside stages or layers, a number or one each"
        raise said(f"{line}, got {show(value)}")


Beside: TypeAlias = Annotated[None, PlainValidator(_beside)]


class StageDocument(CostDocument):
    layers: list[LayerDocument] | None = None
    spread: Beside = None


class LayerEntry(LayerDocument, CostDocument):
    """One layer of a profile by layers, or ``repeat`` equal layers in a row."""

    repeat: Annotated[int, Whole(1, MOST_LAYERS)] | None = None
    with_next: bool | None = None
    spread: Beside = None

    @field_validator("t_bw")
    @classmethod
    def _cut_by_parts(cls, value: float | list[float] | None) -> None:
        if value is not None:
            raise said("expected it of stages alone, as layers are cut by t_b and t_w")

    @model_validator(mode="after")
    def _numbered(self) -> LayerEntry:
        """The names of repeated layers must contain ``{}``, for the number."""
        names = (("name", [self.name]), ("modules", self.module_names))
        for key, given in names if (self.repeat or 1) > 1 else ():
            if any("{}" not in name for name in given):
                number = wrong("{} in it, for the number of each repeated layer")
                raise_faults([DocumentFault((key,), number, given[0])])
        return self

    def each(self) -> list[LayerDocument]:
        """The layers of the entry; if there are several, ``{}`` in names becomes the number."""
        several = (self.repeat or 1) > 1
        numbers = [str(n) if several else "{}" for n in range(self.repeat or 1)]
        return [
            LayerDocument(
                name=self.name.replace("{}", number),
                kind=self.kind,
                modules=[name.replace("{}", number) for name in self.module_names],
            )
            for number in numbers
        ]
