"""A profile by layers as JSON: a profile with ``layers`` instead of, or beside, ``stages``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..model.layered_profile import LayeredProfile
from .json_reader import read_json
from .profile_document import LayeredProfileDocument
from .profile_json import cluster_of, dump_profile, layer_of, spread_over, stage_of
from .validation import validated


def load_layers(path: str) -> LayeredProfile:
    """Reads a profile by layers. Raises InputError with every error of the file."""
    return parse_layers(read_json(path), path)


def parse_layers(data: dict[str, Any], where: str) -> LayeredProfile:
    document = validated(LayeredProfileDocument, data, where)
    entries = [(entry, layer) for entry in document.layers for layer in entry.each()]
    layers = tuple(stage_of(entry, (layer_of(layer),)) for entry, layer in entries)
    together = [bool(entry.with_next) for entry, _ in entries]
    cluster = cluster_of(document, document.layers, (), document.tied)
    layers = spread_over(layers, document.spread)
    return LayeredProfile(layers, (*together[:-1], False), cluster)


def dump_layers(profile: LayeredProfile) -> dict[str, Any]:
    """The profile as a JSON object, one entry a layer; parsing it gives an equal one."""
    document = dump_profile(replace(profile.cluster, stages=profile.layers))
    costs = document.pop("stages")
    document.pop("num_stages", None)
    entries = []
    for cost, together in zip(costs, profile.tied, strict=True):
        (name,) = cost.pop("layers")
        entries.append(name | cost | ({"with_next": True} if together else {}))
    if profile.cluster.tied:
        names = [entry["name"] for entry in entries]
        document["tied"] = [[names[layer] for layer in group] for group in profile.cluster.tied]
    head = {key: document.pop(key) for key in ("format", "version", "name")}
    return head | {"layers": entries} | document
