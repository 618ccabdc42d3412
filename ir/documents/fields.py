"""Types of the fields of documents: bounded numbers, and lists with one entry per rank.

During a validation, pydantic's context contains ``ranks``, ``stages`` and ``microbatches`` as soon
as they have been read. If one of these numbers is invalid, it is not in the context, and checks
that depend on it are skipped.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, TypeAlias

from pydantic import (
    AfterValidator,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
)

from ..errors import printable
from ..units import counted
from .validation import Expected, Whole, said, wrong

# larger numbers are mistakes, and arrays of that size would exhaust memory
MOST_RANKS, MOST_STAGES, MOST_LAYERS = 4096, 65_536, 512
MOST_PAIRS = 1_000_000
"""The maximum of stages x microbatches; a schedule's file has about 300 bytes for each."""
LARGEST = 1e100  # sums of thousands of such numbers are still finite
MOST_COST = 1e80  # sums of millions of ops and delays are below LARGEST
SLOWEST = 1e-9  # gigabytes per second

_Finite = Field(strict=True, ge=-LARGEST, le=LARGEST, allow_inf_nan=False)
Number: TypeAlias = Annotated[float, _Finite, Expected("a finite number")]
Amount: TypeAlias = Annotated[float, _Finite, Field(ge=0), Expected("a finite number >= 0")]
Unbounded: TypeAlias = Annotated[
    float, Field(strict=True, ge=0, allow_inf_nan=False), Expected("a finite number >= 0")
]
Cost: TypeAlias = Annotated[Unbounded, Expected(f"at most {MOST_COST:g}", most=MOST_COST)]
Bandwidth: TypeAlias = Annotated[
    Amount,
    Expected("more than 0", above=0.0),
    Expected(f"at least {SLOWEST:g}, a byte a second", least=SLOWEST),
]
Count: TypeAlias = Annotated[int, Whole()]
Version: TypeAlias = Annotated[int, Field(strict=True, ge=1, le=1), Expected("1")]
Flag: TypeAlias = Annotated[bool, Field(strict=True)]
_LIMITS = TypeAdapter(list[Amount | None])
_COST, _COSTS = TypeAdapter(Cost), TypeAdapter(list[Cost])


def _costs(value: Any) -> float | list[float] | None:
    """Validate one number, or a list with one per microbatch; None (unknown) is accepted."""
    if not isinstance(value, list):
        return None if value is None else _COST.validate_python(value)
    if not value:
        raise wrong("a finite number >= 0, or a list of them, one per microbatch")
    return _COSTS.validate_python(value)


def _cost(value: Any) -> float | list[float] | None:
    return _COST.validate_python(value) if value is None else _costs(value)


Each: TypeAlias = Annotated[float, PlainValidator(_cost)]
"""A number >= 0; in files, also a list with one number per microbatch."""
MaybeEach: TypeAlias = Annotated[float | None, PlainValidator(_costs)]


def _shown(text: str) -> str:
    """Return ``text`` if it has no control characters; raise a fault otherwise."""
    if printable(text) != text:
        raise wrong("no control characters in it")
    return text


Words: TypeAlias = Annotated[str, Field(strict=True), AfterValidator(_shown)]
Name: TypeAlias = Annotated[
    str, Field(strict=True, min_length=1), Expected("a name"), AfterValidator(_shown)
]


def known(info: ValidationInfo, key: str | None) -> int | None:
    """The number ``key`` of the document, such as ``ranks``, from the validation's context.

    None if it has not been read yet, or is invalid.
    """
    found: int | None = info.context.get(key) if info.context else None
    return found


def keep(value: int, info: ValidationInfo) -> int:
    """Store ``value`` in the context, under the name of its field, for later checks; return it."""
    if info.context is not None:
        info.context[info.field_name] = value
    return value


def _one_a_rank(rows: list[Any], info: ValidationInfo) -> list[Any]:
    ranks = known(info, "ranks")
    if ranks is not None and len(rows) != ranks:
        given = counted(len(rows), "list")
        raise said(f"expected {counted(ranks, 'list')}, one per rank, got {given}")
    return rows


def _limits(value: Any, info: ValidationInfo) -> tuple[float, ...] | None:
    """Validate memory limits; return one limit per rank, or None for None (unlimited).

    A single number applies to all ranks. ``null`` in a list becomes ``math.inf`` (unlimited).
    """
    if value is None:
        return None
    ranks = known(info, "ranks")
    given = value if isinstance(value, list) else [value] * (ranks or 1)
    if isinstance(value, tuple):  # in memory
        given = [None if limit == math.inf else limit for limit in value]
    try:
        found = _LIMITS.validate_python(given)
    except ValidationError:
        found = []
    if found and len(found) != ranks is not None:
        raise said(f"expected {counted(ranks, 'number')}, one per rank, got {len(found)}")
    if len(found) != (ranks or max(1, len(given))):
        raise wrong(f"a finite number >= 0, or a list of {ranks or 'P'} of them")
    return tuple(math.inf if limit is None else limit for limit in found)


OneARank = AfterValidator(_one_a_rank)
Limits: TypeAlias = Annotated[tuple[float, ...] | None, PlainValidator(_limits)]
