"""The format of certificates: files with a lower bound and the argument that proves it."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import BeforeValidator, Field
from typing_extensions import TypedDict

from ..documents.fields import Amount, Count, Version, Words
from ..documents.validation import Document, Expected, said
from ..removed import replaced

CERTIFICATE = "pipeloom.certificate"
MOST_PATHS = 100_000


def _not_removed(argument: object) -> object:
    if isinstance(argument, dict):
        for name in (f"certificate {argument.get('kind')}", *(f"key {key}" for key in argument)):
            if line := replaced(name):
                raise said(f"{name.split()[1]} {line}")
    return argument


class Argument(TypedDict):
    """The argument that proves a bound; ``kind`` determines the other keys.

    An argument of kind ``work`` has a ``rank``, and one of kind ``slots`` a ``stage``. An argument
    of kind ``moments`` has ``paths``, each a list of names of moments, which together show that no
    schedule has a lower cost. :mod:`..verify.certificate` describes the arguments.
    """

    kind: Literal["work", "critical-path", "slots", "arrivals", "moments"]
    rank: NotRequired[Count]
    stage: NotRequired[Count]
    paths: NotRequired[Annotated[list[list[Words]], Field(max_length=MOST_PATHS)]]


class CertificateDocument(Document):
    """A proof, by ``argument``, that no schedule of the instance costs less than ``lower_bound``.

    The instance (problem) is that of the schedule for which the certificate is verified.
    ``claimed``: the bound in the schedule's file, if it is higher than ``lower_bound`` because the
    argument for that higher bound cannot be written as a certificate.
    """

    format: Annotated[Literal["pipeloom.certificate"], Expected(f'"{CERTIFICATE}"')]
    version: Version
    objective: Literal["period", "makespan"]
    lower_bound: Amount
    argument: Annotated[Argument, BeforeValidator(_not_removed)]
    claimed: Amount | None = None
