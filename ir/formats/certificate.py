"""Certificates: the format of files with a lower bound and the argument that proves it."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import BeforeValidator, Field
from typing_extensions import TypedDict

from ..documents.fields import Amount, Count, Version, Words
from ..documents.validation import Document, Expected, said
from ..removed import replaced

CERTIFICATE = "pipeloom.certificate"
MOST_NODES = 1_000_000


class Multiplied(TypedDict):
    """An inequality of a stage, and its multiplier ``by``."""

    inequality: Words
    stage: Count
    by: Amount


class Node(TypedDict):
    """A node of a proof by cases.

    A branch distinguishes whether ``count`` of ``stage`` is at most ``most`` (the first child) or
    more. A leaf has ``multipliers`` such that the sum of the multiplied inequalities is a
    contradiction.
    """

    count: NotRequired[Words]
    stage: NotRequired[Count]
    most: NotRequired[Count]
    multipliers: NotRequired[list[Multiplied]]


def _not_removed(kind: object) -> object:
    if isinstance(kind, str) and (line := replaced(f"certificate {kind}")):
        raise said(f"{kind} {line}")
    return kind


class Argument(TypedDict):
    """The argument that proves a bound; ``kind`` determines the other keys.

    ``head-tail`` has a ``rank``; ``slots`` and ``crossings`` a ``stage``; ``through`` a ``stage``,
    and the ``microbatches`` that pass stage ``by``; ``moments`` the ``nodes`` of a tree that
    refutes all lower costs, each node before its children.
    """

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
    """A proof, by ``argument``, that no schedule of the instance costs less than ``lower_bound``.

    The instance is that of the schedule for which the certificate is verified. ``claimed``: the
    bound in the schedule's file, if it is higher and its argument has no certificate.
    """

    format: Annotated[Literal["pipeloom.certificate"], Expected(f'"{CERTIFICATE}"')]
    version: Version
    objective: Literal["period", "makespan"]
    lower_bound: Amount
    argument: Argument
    claimed: Amount | None = None
