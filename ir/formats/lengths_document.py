"""The format of files with the lengths of the sequences of a batch, for packing."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from ..documents.fields import Version
from ..documents.validation import Document, Expected, Whole, validated
from ..errors import InputError

Length = Annotated[int, Whole(1, 1_000_000_000)]


class LengthsDocument(Document):
    """The lengths, in tokens, of the sequences of one batch.

    ``reference_length``: tokens per sequence in the microbatches of the measured profile.
    ``attention``: the fraction of F's time, at this length, that is proportional to the square of
    the sequence length: a number, a list with one per stage, or an object with such values for
    ``t_f``, ``t_b`` and ``t_w``.
    """

    format: Annotated[Literal["pipeloom.lengths"], Expected('"pipeloom.lengths"')]
    version: Version
    lengths: Annotated[list[Length], Field(min_length=1, max_length=100_000)]
    reference_length: Length
    attention: Any


def parse_lengths(data: dict[str, Any], where: str) -> LengthsDocument:
    """Return ``data`` validated as a document of lengths; ``where`` names its file.

    Raises InputError with one line per fault; unknown keys are faults, too.
    """
    found = validated(LengthsDocument, data, where)
    known = ", ".join(LengthsDocument.model_fields)
    if found.model_extra:
        raise InputError(*(f"{where}: {k}: unknown key; known: {known}" for k in found.model_extra))
    return found
