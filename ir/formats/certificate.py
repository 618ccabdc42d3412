"""Certificates: a lower bound and the argument for it, declared for writers and for ``verify``."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import BeforeValidator, Field
from typing_extensions import TypedDict

from ..removed import replaced
from .fields import Amount, Count, Version, Words
from .validation import Document, Expected, said

CERTIFICATE = "pipeloom.certificate"
MOST_NODES = 1_000_000


class Multiplied(TypedDict):
    """An inequality of a stage, and what it is multiplied by."""

    inequality: Words
    stage: Count
    by: Amount


class Node(TypedDict):
    """A branch: ``count`` of ``stage`` is at most ``most`` (what comes first), or more; or a leaf:
    ``multipliers``, for which the inequalities contradict each other."""

    count: NotRequired[Words]
    stage: NotRequired[Count]
    most: NotRequired[Count]
    multipliers: NotRequired[list[Multiplied]]


def _not_removed(kind: object) -> object:
    if isinstance(kind, str) and (line := replaced(f"certificate {kind}")):
        raise said(f"{kind} {line}")
    return kind


class Argument(TypedDict):
    """``work``, ``memory-time``, ``head-tail`` of a ``rank``, ``slots`` or ``crossings`` of a
    ``stage``, ``through`` of a ``stage`` and ``microbatches`` that pass stage ``by``,
    ``critical-path``, ``arrivals``; or ``moments`` with the tree that refutes a lower cost, each
    node before its branches."""

    kind: Annotated[
        Literal[
            "work",
            "critical-path",
            "through",
            "memory-time",
            "head-tail",
            "slots",
            "crossings",
            "arrivals",
            "moments",
        ],
        BeforeValidator(_not_removed),
    ]
    rank: NotRequired[Count]
    stage: NotRequired[Count]
    by: NotRequired[Count]
    microbatches: NotRequired[list[Count]]
    nodes: NotRequired[Annotated[list[Node], Field(max_length=MOST_NODES)]]


class CertificateDocument(Document):
    """No schedule of the instance costs less than ``lower_bound``, by ``argument``.

    The instance is that of the schedule beside which the certificate is checked. ``claimed``: the
    schedule's own bound, where that is more and its argument has no certificate.
    """

    format: Annotated[Literal["pipeloom.certificate"], Expected(f'"{CERTIFICATE}"')]
    version: Version
    objective: Literal["period", "makespan"]
    lower_bound: Amount
    argument: Argument
    claimed: Amount | None = None
