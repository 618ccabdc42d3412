"""Clusters: nodes of equal GPUs, a link inside and one between; presets by name.

The link of a GPU is what it sends in one direction: half of the sum of both that is published for
NVLink. Latencies are those of one message between two GPUs, software included.

Cluster files: ``"format": "pipeloom.cluster"``; ``docs/formats.md`` describes all keys.

Presets may stand for the GPU and for links. What a file does not say of efficiency is the recorded
calibration of its GPU, or what is usual.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from pipeloom.ir.errors import InputError, did_you_mean
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
from pipeloom.ir.units import counted

from .efficiency import BOUNDS, Efficiency, calibrated
from .gpus import GPUS, PRECISIONS, SIXTEEN, Gpu

LINKS = {
    "nvlink2": Link(0.008, 150.0),  # V100: 6 links of 25 GB/s
    "nvlink3": Link(0.008, 300.0),  # A100: 12 of 25
    "nvlink4": Link(0.006, 450.0),  # H100: 18 of 25
    "nvlink5": Link(0.006, 900.0),  # Blackwell: 18 of 50
    "nvlink4-pairs": Link(0.006, 150.0),  # four GH200, 6 links to each other one
    "infinity-fabric-2": Link(0.010, 200.0),  # MI250X: 8 links of 50, half of them in a node
    "infinity-fabric-4": Link(0.010, 448.0),  # MI300X: 7 links of 64
    "infinity-fabric-5": Link(0.010, 537.6),  # MI355X: 7 of 76.8
    "pcie3-x16": Link(0.015, 15.75),
    "pcie4-x16": Link(0.015, 31.5),
    "pcie5-x16": Link(0.015, 63.0),
    "infiniband-100g": Link(0.012, 12.5),  # EDR
    "infiniband-200g": Link(0.012, 25.0),  # HDR
    "infiniband-400g": Link(0.012, 50.0),  # NDR
    "infiniband-800g": Link(0.012, 100.0),  # XDR
    "slingshot-200g": Link(0.015, 25.0),
    "ethernet-10g": Link(0.05, 1.25),
    "ethernet-25g": Link(0.05, 3.125),
    "ethernet-100g": Link(0.025, 12.5),
    "ethernet-200g": Link(0.025, 25.0),
    "ethernet-400g": Link(0.025, 50.0),
    "ethernet-800g": Link(0.025, 100.0),
}
"""One direction of one GPU's share, by the rates of the standards and of the makers' datasheets."""
HOST_LINKS = {
    **{name: LINKS[name] for name in ("pcie3-x16", "pcie4-x16", "pcie5-x16")},
    "nvlink-c2c": Link(0.010, 450.0),  # GH200: 900 both ways
    "nvlink-c2c-pair": Link(0.010, 225.0),  # GB200: the same for two GPUs
    "infinity-fabric-cpu": Link(0.010, 72.0),  # MI250X: 36 for each of its two dies
}
"""Between a GPU and its host, one direction."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes of ``gpus_per_node`` equal GPUs. ``inside``: the link between two of a node;
    ``between``: a GPU's share of the network. ``efficiency``: what kernels and messages reach.
    ``host``: the link of each GPU to its host, None where it is not known.
    """

    name: str
    gpu: Gpu
    gpus_per_node: int
    inside: Link
    between: Link
    efficiency: Efficiency
    host: Link | None = None

    @property
    def network(self) -> str:
        """``300 GB/s within a node of 8 GPUs, 25 GB/s for each GPU between nodes``."""
        inside, between = self.inside.gigabytes_per_second, self.between.gigabytes_per_second
        node = counted(self.gpus_per_node, "GPU")
        return f"{inside:g} GB/s within a node of {node}, {between:g} GB/s per GPU between nodes"

    def to_dict(self) -> dict[str, Any]:
        """The object of a cluster file."""
        return {
            "format": "pipeloom.cluster",
            "version": 1,
            "name": self.name,
            "gpu": self.gpu.to_dict(),
            "gpus_per_node": self.gpus_per_node,
            "inside": link_dict(self.inside),
            "between": link_dict(self.between),
            **({} if self.host is None else {"host": link_dict(self.host)}),
            "efficiency": self.efficiency.to_dict(),
        }


def link_dict(link: Link) -> dict[str, float]:
    """The object of a cluster file."""
    return {"latency": link.latency, "gigabytes_per_second": link.gigabytes_per_second}


NODES: Mapping[str, tuple[str, int, str, str, str]] = {
    "dgx-1-16gb": ("V100-16GB", 8, "nvlink2", "infiniband-100g", "pcie3-x16"),
    "dgx-1": ("V100-32GB", 8, "nvlink2", "infiniband-100g", "pcie3-x16"),
    "dgx-a100-40gb": ("A100-40GB", 8, "nvlink3", "infiniband-200g", "pcie4-x16"),
    "dgx-a100": ("A100-80GB", 8, "nvlink3", "infiniband-200g", "pcie4-x16"),
    "dgx-h100": ("H100", 8, "nvlink4", "infiniband-400g", "pcie5-x16"),
    "h100-500w": ("H100-96GB-500W", 8, "nvlink4", "ethernet-400g", "pcie5-x16"),
    "dgx-h200": ("H200", 8, "nvlink4", "infiniband-400g", "pcie5-x16"),
    "gh200": ("GH200-96GB", 4, "nvlink4-pairs", "slingshot-200g", "nvlink-c2c"),
    "gh200-144gb": ("GH200-144GB", 4, "nvlink4-pairs", "slingshot-200g", "nvlink-c2c"),
    "dgx-b200": ("B200", 8, "nvlink5", "infiniband-400g", "pcie5-x16"),
    "dgx-b300": ("B300", 8, "nvlink5", "infiniband-800g", "pcie5-x16"),
    "gb200-nvl72": ("GB200", 72, "nvlink5", "infiniband-400g", "nvlink-c2c-pair"),
    "gb300-nvl72": ("GB300", 72, "nvlink5", "infiniband-800g", "nvlink-c2c-pair"),
    "mi250x": ("MI250X", 4, "infinity-fabric-2", "slingshot-200g", "infinity-fabric-cpu"),
    "mi300x": ("MI300X", 8, "infinity-fabric-4", "ethernet-400g", "pcie5-x16"),
    "mi325x": ("MI325X", 8, "infinity-fabric-4", "ethernet-400g", "pcie5-x16"),
    "mi355x": ("MI355X", 8, "infinity-fabric-5", "ethernet-400g", "pcie5-x16"),
    "l40s": ("L40S", 8, "pcie4-x16", "ethernet-200g", "pcie4-x16"),
    "rtx-3090": ("RTX-3090", 8, "pcie4-x16", "ethernet-100g", "pcie4-x16"),
    "rtx-4090": ("RTX-4090", 8, "pcie4-x16", "ethernet-100g", "pcie4-x16"),
    "rtx-5090": ("RTX-5090", 8, "pcie5-x16", "ethernet-100g", "pcie5-x16"),
}
"""Clusters by name: the GPU, how many a node has, the links inside, of the network and to the host.
"""
_OTHERS = {
    **{"a100": "A100-80GB", "v100": "V100-32GB", "gh200": "GH200-96GB"},
    **{"h100-80gb": "H100", "h100-sxm": "H100", "3090": "RTX-3090", "4090": "RTX-4090"},
}


def preset(name: str) -> Cluster:
    """The cluster of that name, case, hyphens and spaces aside, or the usual one of a GPU.

    Raises InputError.
    """
    meant = {_bare(known): known for known in (*NODES, *GPUS)}
    meant |= {_bare(known): of for known, of in _OTHERS.items()}
    wanted = meant.get(_bare(name), "")
    for cluster, (gpu, size, inside, between, host) in NODES.items():
        if wanted in {cluster, gpu}:
            links = LINKS[inside], LINKS[between]
            return Cluster(cluster, GPUS[gpu], size, *links, calibrated(gpu), HOST_LINKS[host])
    if hint := did_you_mean(name, (*NODES, *GPUS, *_OTHERS)):
        raise InputError(f"expected a GPU, a cluster or a file, got {name!r}{hint}")
    raise InputError(f"expected one of {', '.join(NODES)}, a GPU or a file, got {name!r}")


def gpu_called(name: str) -> str | None:
    """The GPU of :data:`GPUS` that is meant, as by :func:`called`."""
    meant = {_bare(known): of for known, of in _OTHERS.items() if of in GPUS}
    return called(name, GPUS) or meant.get(_bare(name))


def called(name: str, known: Iterable[str]) -> str | None:
    """The one of ``known`` that is meant, case, hyphens and spaces aside; None where none is."""
    return {_bare(each): each for each in known}.get(_bare(name))


def _bare(name: str) -> str:
    """Without what people write differently: case, hyphens and spaces."""
    return re.sub(r"[^a-z0-9.]", "", name.lower())


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
    if unsure := keys_in_doubt(PipeloomCluster, data, where):
        raise InputError(*(line.replace(", not used", "") for line in unsure.values()))
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
