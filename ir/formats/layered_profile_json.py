"""A profile by layers as JSON: a profile with ``layers`` instead of, or beside, ``stages``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

from ..errors import InputError
from ..model.layered_profile import LayeredProfile
from ..model.layers import Layer
from ..model.profile import StageProfile
from .documents import MOST_LAYERS, LayeredProfileDocument, LayerEntry
from .json_reader import read_json, show
from .profile_json import cluster_of, dump_profile, layer_of, stage_of
from .validation import validated


def load_layers(path: str) -> LayeredProfile:
    """Reads a profile by layers. Raises InputError with every error of the file."""
    return parse_layers(read_json(path), path)


def parse_layers(data: dict[str, Any], where: str) -> LayeredProfile:
    document = validated(LayeredProfileDocument, data, where)
    entries = [(entry, _layers(entry)) for entry in document.layers]
    layers = tuple(chain.from_iterable(layers for _, layers in entries))
    together = [bool(entry.with_next) for entry, layers in entries for _ in layers]
    wrong = list(_wrong_layers(layers))
    if wrong:
        raise InputError(*(f"{where}: layers: {line}" for line in wrong))
    return LayeredProfile(layers, (*together[:-1], False), cluster_of(document, ()))


def dump_layers(profile: LayeredProfile) -> dict[str, Any]:
    """The profile as a JSON object, one entry a layer; parsing it gives an equal one."""
    document = dump_profile(replace(profile.cluster, stages=profile.layers))
    costs = document.pop("stages")
    document.pop("num_stages", None)
    entries = []
    for cost, together in zip(costs, profile.tied, strict=True):
        (name,) = cost.pop("layers")
        entries.append(name | cost | ({"with_next": True} if together else {}))
    head = {key: document.pop(key) for key in ("format", "version", "name")}
    return head | {"layers": entries} | document


def _layers(entry: LayerEntry) -> list[StageProfile]:
    """The layers that one entry stands for."""
    layer = layer_of(entry)
    number = entry.repeat or 1
    layers = [layer] if number == 1 else [_numbered(layer, n) for n in range(number)]
    return [stage_of(entry, (one,)) for one in layers]


def _numbered(layer: Layer, number: int) -> Layer:
    """``{}`` in its names is the number of the layer among those that one entry stands for."""
    modules = tuple(module.replace("{}", str(number)) for module in layer.modules)
    return Layer(layer.name.replace("{}", str(number)), layer.kind, modules)


def _wrong_layers(stages: tuple[StageProfile, ...]) -> Iterator[str]:
    """Too many layers, and each name of a layer, or else of a module, that is there twice."""
    if len(stages) > MOST_LAYERS:
        yield f"expected at most {MOST_LAYERS} layers, got {len(stages)}"
    layers = [layer for stage in stages for layer in stage.layers]
    names = Counter(layer.name for layer in layers)
    modules = Counter(module for layer in layers for module in layer.modules)
    for what, counts in (("name", names), ("modules", modules)):
        twice = sorted(name for name, number in counts.items() if number > 1)
        yield from (f"{what}: expected {show(name)} once, got it twice" for name in twice)
        if twice:
            return
