"""Lengths of sequences, and what they are packed into, declared once."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    field_validator,
)

from ..errors import InputError
from .fields import Amount, Version
from .validation import (
    Document,
    DocumentFault,
    Expected,
    Whole,
    raise_faults,
    said,
    validated,
    wrong,
)

LENGTHS, PACKING = "pipeloom.lengths", "pipeloom.packing"
MOST_SEQUENCES, MOST_TOKENS = 100_000, 1_000_000_000
OP_TIMES = "t_f", "t_b", "t_w"
"""Of F, B and W, as profiles call them."""
Length = Annotated[int, Whole(1, MOST_TOKENS)]


def _some(lengths: list[int]) -> list[int]:
    if not lengths:
        raise wrong("at least one")
    return lengths


def _attention(value: Any) -> Any:
    if isinstance(value, dict) and set(value) == set(OP_TIMES) and None not in value.values():
        return {key: _shares(each) for key, each in value.items()}
    return _shares(value)


def _shares(value: Any) -> float | list[float] | None:
    given = value if isinstance(value, list) else [0.0 if value is None else value]
    try:
        found = _SHARES.validate_python(given)
    except ValidationError:
        found = []
    if not found:
        raise wrong(
            "a number from 0 to 1, or a list of them, one a stage, or such of t_f, t_b and t_w"
        )
    return found if isinstance(value, list) else None if value is None else found[0]


_SHARES = TypeAdapter(list[Annotated[float, Field(strict=True, ge=0, le=1)]])
Lengths = Annotated[list[Length], Field(max_length=MOST_SEQUENCES), AfterValidator(_some)]
Share: TypeAlias = float | list[float]
Attention = Annotated[Share | dict[str, Share] | None, PlainValidator(_attention)]
Found = TypeVar("Found", bound=Document)


class LengthsDocument(Document):
    """The sequences of one batch, and what a profile's microbatch was.

    ``reference_length``: tokens of each sequence in the microbatch that the profile measured;
    ``attention``: of its forwards, the share of time that grows with the square of a sequence's
    length, one or one a stage, or an object with such shares of F, B and W each; ``model`` instead:
    from whose arithmetic it follows.
    """

    format: Annotated[Literal["pipeloom.lengths"], Expected(f'"{LENGTHS}"')]
    version: Version
    lengths: Lengths
    reference_length: Length
    attention: Attention = None
    model: Annotated[
        str | dict[str, Any] | None, Expected("a preset's name, or a model's configuration")
    ] = None


class PackedReplicaDocument(Document):
    """``microbatches``: the sequences of each, by their places in ``lengths``. ``busiest_ms``: how
    long each microbatch keeps the busiest rank. ``cost``: of the replica's schedule."""

    microbatches: list[list[Annotated[int, Whole(0)]]]
    busiest_ms: list[Amount]
    cost: Amount


class PackingDocument(Document):
    """Which sequences are in which microbatch of which replica, each exactly once."""

    format: Annotated[Literal["pipeloom.packing"], Expected(f'"{PACKING}"')]
    version: Version
    lengths: Lengths
    max_tokens: Length | None = None
    replicas: Annotated[list[PackedReplicaDocument], Field(min_length=1)]
    cost: Amount
    lower_bound: Amount

    @field_validator("replicas")
    @classmethod
    def _each_once(cls, replicas: list[PackedReplicaDocument], info: Any) -> Any:
        packed = sorted(i for one in replicas for each in one.microbatches for i in each)
        count = len(info.data.get("lengths", packed))
        if packed != list(range(count)):
            raise said(f"expected each of the sequences 0 to {count - 1} exactly once")
        raise_faults(
            DocumentFault((r, "busiest_ms"), said("expected one number a microbatch"))
            for r, one in enumerate(replicas)
            if len(one.busiest_ms) != len(one.microbatches)
        )
        return replicas


def parse_lengths(data: dict[str, Any], where: str) -> LengthsDocument:
    """Raises InputError with a line for each fault, unknown keys among them."""
    return _known_keys(validated(LengthsDocument, data, where), where)


def parse_packing(data: dict[str, Any], where: str) -> PackingDocument:
    """Raises InputError with a line for each fault, unknown keys among them."""
    return _known_keys(validated(PackingDocument, data, where), where)


def _known_keys(found: Found, where: str) -> Found:
    known = ", ".join(type(found).model_fields)
    if found.model_extra:
        raise InputError(*(f"{where}: {k}: unknown key; known: {known}" for k in found.model_extra))
    return found
