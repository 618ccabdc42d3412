"""Cluster files: ``"format": "pipeloom.cluster"``; ``docs/formats.md`` describes all keys.

Presets may stand for the GPU and for links. What a file does not say of efficiency is the recorded
calibration of its GPU, or what is usual.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from pipeloom.ir.errors import InputError
from pipeloom.ir.formats.fields import Amount, Bandwidth, Cost, Version
from pipeloom.ir.formats.json_reader import read_json
from pipeloom.ir.formats.validation import (
    Document,
    DocumentFault,
    Expected,
    Whole,
    keys_in_doubt,
    misspelt,
    raise_faults,
    said,
    validated,
    wrong,
)
from pipeloom.ir.model.links import Link

from .cluster import HOST_LINKS, LINKS, Cluster, called, gpu_called, link_dict, preset
from .efficiency import BOUNDS, Efficiency, calibrated
from .gpus import GPUS, PRECISIONS, SIXTEEN, Gpu

CLUSTER = "pipeloom.cluster"
MOST_UNITS = 10**6
_UNLIKE = {"links", "pairs", "shared"}
"""Words of a profile for links that differ."""
Positive = Annotated[Amount, Expected("a finite number > 0", above=0.0)]


def _gpu(value: Any) -> Any:
    """A GPU's name, as ``--gpu`` takes it, or an object."""
    if not isinstance(value, str):
        return value
    found = gpu_called(value)
    if found is None:
        raise _unknown(value, GPUS)
    return GPUS[found].to_dict()


def _link(value: Any, known: Mapping[str, Link] = LINKS) -> Any:
    """A preset's name, or an object."""
    if not isinstance(value, str):
        return value
    found = called(value, known)
    if found is None:
        raise _unknown(value, known)
    return link_dict(known[found])


def _unknown(value: str, known: Mapping[str, object]) -> PydanticCustomError:
    """The fault of a name, with the one that it is near to."""
    near = get_close_matches(value, known, 1)
    hint = f" ({near[0]}, say)" if near else ""
    return wrong(f"an object, or one of {', '.join(known)}{hint}")


def _host_link(value: Any) -> Any:
    return _link(value, HOST_LINKS)


class ClusterLinkDocument(Document):
    latency: Cost = 0.0
    gigabytes_per_second: Bandwidth

    @property
    def link(self) -> Link:
        return Link(self.latency, self.gigabytes_per_second)


class GpuDocument(Document):
    name: Annotated[str, Expected("a name")]
    teraflops: Annotated[dict[str, Positive], Expected("an object of numbers > 0")]
    memory_gib: Positive
    gigabytes_per_second: Bandwidth
    multiprocessors: Annotated[int, Whole(1, MOST_UNITS)]
    source: str = ""

    @field_validator("teraflops")
    @classmethod
    def _known(cls, rates: dict[str, float]) -> dict[str, float]:
        unknown = [key for key in rates if key not in PRECISIONS]
        words = f"unknown precision; expected {', '.join(PRECISIONS)}"
        raise_faults(DocumentFault((key,), said(words)) for key in unknown)
        if not any(key in rates for key in SIXTEEN):
            raise_faults([DocumentFault(("bf16",), said("missing; expected a number > 0"))])
        return rates


class PipeloomCluster(Document):
    """A cluster file."""

    format: Annotated[Literal["pipeloom.cluster"], Expected(f'"{CLUSTER}"')]
    version: Version
    name: Annotated[str, Expected("a name")] = ""
    gpu: Annotated[GpuDocument, BeforeValidator(_gpu)]
    gpus_per_node: Annotated[int, Whole(1)]
    inside: Annotated[ClusterLinkDocument, BeforeValidator(_link)]
    between: Annotated[ClusterLinkDocument, BeforeValidator(_link)]
    host: Annotated[ClusterLinkDocument | None, BeforeValidator(_host_link)] = None
    efficiency: Annotated[dict[str, Any], Expected("an object")] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _alike(self) -> Self:
        """Links that differ from node to node are a profile's."""
        unlike = sorted(_UNLIKE & {*(self.model_extra or ())})
        words = said("expected none: nodes are alike; unlike links are a profile's, in its links")
        raise_faults(DocumentFault((key,), words) for key in unlike)
        return self

    @field_validator("efficiency")
    @classmethod
    def _within(cls, given: dict[str, Any]) -> dict[str, Any]:
        raise_faults(_faults(given))
        return given


def _faults(given: Mapping[str, Any]) -> list[DocumentFault]:
    """Faults: what is no parameter, or not within its bounds."""
    found = []
    hints = dict(misspelt(given, BOUNDS))
    for key, value in given.items():
        if key == "shapes":
            found += _shape_faults(value)
        elif key not in BOUNDS:
            hint = f"did you mean {hints[key]}?" if key in hints else f"known: {', '.join(BOUNDS)}"
            found.append(DocumentFault((key,), said(f"unknown key; {hint}")))
        elif not _is_number(value) or not 0 < value <= BOUNDS[key]:
            words = f"a number > 0 and <= {BOUNDS[key]:g}"
            found.append(DocumentFault((key,), wrong(words), value))
    return found


def _shape_faults(shapes: Any) -> list[DocumentFault]:
    if not isinstance(shapes, dict):
        return [DocumentFault(("shapes",), wrong("an object of numbers > 0"), shapes)]
    return [
        DocumentFault(("shapes", key), wrong("a number > 0"), value)
        for key, value in shapes.items()
        if not _is_number(value) or value <= 0
    ]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def parse_cluster(data: Mapping[str, Any], where: str) -> Cluster:
    """The cluster that a document describes. Raises InputError with a line for each fault; a key
    that is much like a known one is one."""
    found = validated(PipeloomCluster, dict(data), where)
    if unsure := keys_in_doubt(found, where):
        raise InputError(*(line.replace(", not used", "") for line in unsure))
    gpu = Gpu(**{key: getattr(found.gpu, key) for key in GpuDocument.model_fields})
    reached = calibrated(gpu.name).to_dict() | found.efficiency
    return Cluster(
        found.name or gpu.name,
        gpu,
        found.gpus_per_node,
        found.inside.link,
        found.between.link,
        Efficiency(**reached),
        None if found.host is None else found.host.link,
    )


def read_cluster(given: Cluster | Mapping[str, Any] | str | os.PathLike[str]) -> Cluster:
    """The cluster of that name, of that file (its name has a dot or a slash), or object.

    Raises InputError.
    """
    if isinstance(given, Cluster):
        return given
    if isinstance(given, Mapping):
        return parse_cluster(given, "cluster")
    if not isinstance(given, str | os.PathLike):
        raise InputError(f"cluster: expected a name, a file or an object, got {given!r:.60}")
    name = os.fspath(given)
    if name == "-" or "." in name or "/" in name:
        return parse_cluster(read_json(name), name)
    return preset(name)
