"""Clusters: nodes of equal GPUs, with one kind of link within nodes and one between nodes; and
presets by name.

The bandwidth of a GPU's link is that of one direction: half of the bidirectional value that is
published for NVLink. Latencies are those of a message between two GPUs, including software.

Cluster files have ``"format": "pipeloom.cluster"``; ``docs/formats.md`` describes all keys. The GPU
and the links may be names of presets. Missing keys of the efficiency are taken from the recorded
calibration of the GPU, or, if there is none, from the priors.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from pipeloom.ir.documents.fields import Bandwidth, Cost, Version
from pipeloom.ir.documents.json_reader import read_json
from pipeloom.ir.documents.validation import (
    Document,
    Expected,
    Whole,
    keys_in_doubt,
    validated,
    wrong,
)
from pipeloom.ir.errors import InputError, did_you_mean
from pipeloom.ir.units import counted

from ..models.words import bare, find_name
from .efficiency import PRESETS, Efficiency, calibrated
from .gpus import GPUS, Gpu

CLUSTERS = PRESETS["clusters"]
_ALIKE = Expected("none: nodes are alike; unlike links are a profile's, in its links")
_ALSO = {bare(name): gpu for name, gpu in PRESETS["also"].items()}


def _preset(known: Mapping[str, Any]) -> BeforeValidator:
    """Return a validator for a field whose value may be the name of one of the presets ``known``
    instead of an object."""

    def named(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if (name := find_name(_meant(value), known)) is not None:
            return known[name]
        near = get_close_matches(value, known, 1)
        hint = f" ({near[0]}, say)" if near else ""
        raise wrong(f"an object, or one of {', '.join(known)}{hint}")

    return BeforeValidator(named)


def _meant(name: str) -> str:
    """Return the name of the GPU for which ``name`` is an alias; if it is no alias, return ``name``
    itself."""
    return str(_ALSO.get(bare(name), name))


class ClusterLink(Document):
    """A link in one direction: latency in milliseconds, bandwidth in gigabytes (10^9 bytes) per
    second."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    latency: Cost = 0.0
    gigabytes_per_second: Bandwidth


class Cluster(Document):
    """Nodes of ``gpus_per_node`` equal GPUs.

    ``inside``: the link between two GPUs of a node; ``between``: the link between two GPUs of
    different nodes, with the share of the network's bandwidth that each GPU has. ``efficiency``:
    the rates that kernels and messages reach.
    """

    model_config = ConfigDict(frozen=True)

    format: Annotated[Literal["pipeloom.cluster"], Expected('"pipeloom.cluster"')]
    version: Version
    name: Annotated[str, Expected("a name")] = ""
    gpu: Annotated[Gpu, _preset(GPUS)]
    gpus_per_node: Annotated[int, Whole(1)]
    inside: Annotated[ClusterLink, _preset(PRESETS["links"])]
    between: Annotated[ClusterLink, _preset(PRESETS["links"])]
    efficiency: Efficiency = Field({}, validate_default=True)
    links: Annotated[None, _ALIKE] = None
    pairs: Annotated[None, _ALIKE] = None
    shared: Annotated[None, _ALIKE] = None
    """``links``, ``pairs`` and ``shared`` are keys of a profile, whose links may differ between
    pairs of ranks; in a cluster they are invalid."""

    @field_validator("efficiency", mode="before")
    @classmethod
    def _calibrated(cls, given: Any, info: ValidationInfo) -> Any:
        """Return the given rates, with missing ones filled in from the GPU's calibration."""
        if not isinstance(given, dict) or "gpu" not in info.data:
            return given
        return calibrated(info.data["gpu"].name).model_dump() | given

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def network(self) -> str:
        """The links in words, such as ``300 GB/s within a node of 8 GPUs, 25 GB/s per GPU between
        nodes``."""
        inside, between = self.inside.gigabytes_per_second, self.between.gigabytes_per_second
        node = counted(self.gpus_per_node, "GPU")
        return f"{inside:g} GB/s within a node of {node}, {between:g} GB/s per GPU between nodes"

    def to_dict(self) -> dict[str, Any]:
        """Return the object of a cluster file."""
        return self.model_dump(exclude_none=True)


ClusterLike: TypeAlias = Cluster | Mapping[str, Any] | str | os.PathLike[str]
"""A cluster, a preset's name, a file, or an object."""


def preset(name: str) -> Cluster:
    """Return the cluster with this name (ignoring case, hyphens and spaces), or, for the name of a
    GPU, its default cluster.

    Raises InputError if there is neither.
    """
    wanted = find_name(_meant(name), (*CLUSTERS, *GPUS))
    for cluster, words in CLUSTERS.items():
        if wanted in {cluster, words["gpu"]}:
            marks = {"format": "pipeloom.cluster", "version": 1, "name": cluster}
            return parse_cluster(marks | words, cluster)
    if hint := did_you_mean(name, (*CLUSTERS, *GPUS, *PRESETS["also"])):
        raise InputError(f"expected a GPU, a cluster or a file, got {name!r}{hint}")
    raise InputError(f"expected one of {', '.join(CLUSTERS)}, a GPU or a file, got {name!r}")


def parse_cluster(data: Mapping[str, Any], where: str) -> Cluster:
    """Return the cluster that a document describes.

    ``where``: the document's name in messages. Raises InputError with one line per fault. An
    unknown key is a fault if it is similar to a known one, or if it is in ``efficiency``.
    """
    found = validated(Cluster, dict(data), where)
    if unsure := keys_in_doubt(Cluster, data, where):
        raise InputError(*(str(fault).replace(", not used", "") for fault in unsure.values()))
    known = ", ".join(Efficiency.model_fields)
    if extra := found.efficiency.model_extra:
        raise InputError(*(f"{where}: efficiency: {k}: unknown key; known: {known}" for k in extra))
    return found if found.name else found.model_copy(update={"name": found.gpu.name})


def read_cluster(given: ClusterLike) -> Cluster:
    """Return the cluster given by a preset's name, a file (if the name has a dot or a slash), or an
    object.

    Raises InputError if it is invalid.
    """
    if isinstance(given, Cluster):
        return given
    if isinstance(given, Mapping):
        return parse_cluster(given, "cluster")
    if not isinstance(given, str | os.PathLike):
        raise InputError(f"expected a name, a file or an object, got {given!r:.60}")
    name = os.fspath(given)
    if name == "-" or "." in name or "/" in name:
        return parse_cluster(read_json(name), name)
    return preset(name)


def cluster_of(given: ClusterLike | None, gpu: Any) -> Cluster:
    """Return the cluster ``given``, or, if it is None, the default cluster of the GPU with the name
    ``gpu``. Raises InputError if both are None, or if the one that is used is invalid."""
    if given is None and gpu is None:
        raise InputError(
            "gpu: expected a GPU's name, or a cluster, such as H100; pipeloom.arithmetic gives a "
            "model's parameters, FLOPs and bytes without one"
        )
    key, name = ("gpu", gpu) if given is None else ("cluster", given)
    try:
        return read_cluster(name)
    except InputError as error:
        named = (f"{key}: {x}" if x.startswith("expected ") else x for x in error.errors)
        raise InputError(*named) from None
