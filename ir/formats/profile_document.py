"""Profiles, by stages and by layers, declared once for all who read them.

What values mean and how they go together is not said here, but for what a shape depends on: ranks,
stages and layers that there are. ``docs/formats.md`` describes all keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import (
    AfterValidator,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from .cluster_document import ClusterDocument
from .fields import MOST_LAYERS, MOST_STAGES, known
from .json_reader import show
from .stage_document import LayerEntry, StageDocument
from .validation import DocumentFault, Whole, raise_faults, said, wrong

Ties: TypeAlias = tuple[tuple[int, ...], ...]
Spreads: TypeAlias = float | list[float] | None
_SPREAD: TypeAlias = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]
_SPREADS = TypeAdapter(_SPREAD | list[_SPREAD] | None)


def _tied_stages(value: Any, info: ValidationInfo) -> Ties:
    """Groups of stages, which may be called by their number or by a layer of theirs."""
    number = known(info, "stages") or 0
    places: dict[int | str, int] = {stage: stage for stage in range(number)}
    for s, stage in enumerate(info.data.get("stages", ())):
        places |= {layer.name: s for layer in stage.layers or ()}
    return _ties(value, places, f"stages of 0..{number - 1}") if number else ()


def _tied_layers(value: Any, info: ValidationInfo) -> Ties:
    """Groups of layers by their names."""
    names = [layer.name for entry in info.data.get("layers", ()) for layer in entry.each()]
    places = {name: place for place, name in enumerate(names)}
    return _ties(value, places, "names of layers") if names else ()


def _ties(value: Any, places: Mapping[Any, int], what: str) -> Ties:
    """Groups of ``what`` that share parameters; ``places``: of each by what it may be called."""
    if not isinstance(value, list | None):
        raise wrong("a list")
    groups: list[tuple[int, ...]] = []
    found: list[DocumentFault] = []
    for i, entry in enumerate(value or ()):
        members = entry if isinstance(entry, list) else []
        there = all(type(member) in (int, str) and member in places for member in members)
        sound = there and len(members) >= 2 and len(set(members)) == len(members)
        group = tuple(sorted({places[member] for member in members})) if sound else ()
        if not sound:
            found.append(DocumentFault((i,), wrong(f"two or more different {what}"), entry))
        elif group in groups:
            found.append(DocumentFault((i,), wrong("each group once"), entry))
        elif len(group) > 1:  # else layers of one stage
            groups.append(group)
    raise_faults(found)
    return tuple(sorted(groups))


def _spread(value: Any, number: int | None, what: str) -> Spreads:
    """One relative standard deviation, or one of each of ``number`` stages or layers."""
    try:
        found = _SPREADS.validate_python(value)
    except ValidationError:
        found = []
    if isinstance(found, list) and len(found) != (number or len(found) or -1):
        raise wrong(f"a number from 0 to 1, or a list of {number or 'S'} of them, one a {what}")
    return found


def _spread_of_stages(value: Any, info: ValidationInfo) -> Spreads:
    return _spread(value, known(info, "stages"), "stage")


def _spread_of_layers(value: Any, info: ValidationInfo) -> Spreads:
    layers = info.data.get("layers", ())
    return _spread(value, sum(entry.repeat or 1 for entry in layers) or None, "layer")


def _at_least_stages(number: int, info: ValidationInfo) -> int:
    least = known(info, "stages") or 0
    if number < least:
        raise wrong(f"at least {least}, the number of stages")
    return number


class ProfileDocument(ClusterDocument):
    """A profile by stages; one entry is shared by ``num_stages`` stages, or one a rank."""

    stages: list[StageDocument]
    num_stages: Annotated[int, Whole(1, MOST_STAGES)] | None = Field(None, validate_default=True)
    max_stages: Annotated[int, Whole(1), AfterValidator(_at_least_stages)] | None = None
    tied: Annotated[Ties, PlainValidator(_tied_stages)] = ()
    spread: Annotated[Spreads, PlainValidator(_spread_of_stages)] = None
    layers: list[Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _by_layers(cls, data: Any) -> Any:
        """Refuses a profile by layers in one line: its other keys are for other commands."""
        if isinstance(data, dict) and "stages" not in data and data.get("layers") is not None:
            line = "missing; expected a list (it has layers, which optimize and build cut)"
            raise_faults([DocumentFault(("stages",), said(line))])
        return data

    @field_validator("stages")
    @classmethod
    def _some(cls, stages: list[StageDocument]) -> list[StageDocument]:
        if not stages:
            raise wrong("at least one stage")
        return stages

    @field_validator("num_stages")
    @classmethod
    def _count_stages(cls, number: int | None, info: ValidationInfo) -> int | None:
        entries, ranks = len(info.data.get("stages", ())), known(info, "ranks")
        if number is None:
            number = ranks if entries == 1 else entries
        elif entries not in (0, 1, number):
            raise wrong(f"{entries}, the number of entries in stages, or one shared entry")
        if info.context is not None and entries and number is not None:
            info.context["stages"] = number
        return number


class LayeredProfileDocument(ClusterDocument):
    """A profile by layers, in forward order."""

    layers: list[LayerEntry]
    max_stages: Annotated[int, Whole(1)] | None = None
    tied: Annotated[Ties, PlainValidator(_tied_layers)] = ()
    spread: Annotated[Spreads, PlainValidator(_spread_of_layers)] = None
    stages: list[Any] | None = None
    num_stages: Any = None

    @field_validator("layers")
    @classmethod
    def _told_apart(cls, layers: list[LayerEntry]) -> list[LayerEntry]:
        """Some layers, not too many, and no name of one, or else of a module, twice."""
        number = sum(entry.repeat or 1 for entry in layers)
        if not layers:
            raise wrong("at least one layer")
        if number > MOST_LAYERS:
            raise said(f"expected at most {MOST_LAYERS} layers, got {number}")
        each = [layer for entry in layers for layer in entry.each()]
        names = Counter(layer.name for layer in each)
        modules = Counter(name for layer in each for name in layer.module_names)
        for key, counts in (("name", names), ("modules", modules)):
            twice = sorted(name for name, count in counts.items() if count > 1)
            lines = (f"expected {show(name)} once, got it twice" for name in twice)
            raise_faults(DocumentFault((key,), said(line)) for line in lines)
        return layers
