"""A profile by layers as JSON: a profile with ``layers`` instead of, or beside, ``stages``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..errors import InputError
from ..model.layered_profile import LayeredProfile
from ..model.profile import StageProfile
from .json_reader import Reader, read_json
from .layer_json import numbered, read_layer, repeated
from .profile_json import LAYER_KEYS, dump_profile, read_cluster, read_stage, read_tied

MOST_LAYERS = 512
"""More are no layers; all cuts of so many can still be compared."""


def load_layers(path: str) -> LayeredProfile:
    """Reads a profile by layers. Raises InputError with every error of the file."""
    return parse_layers(read_json(path), path)


def parse_layers(data: dict[str, Any], where: str) -> LayeredProfile:
    errors: list[str] = []
    reader = Reader(data, where, errors)
    cluster = read_cluster(reader)
    layers: list[StageProfile] = []
    tied: list[bool] = []
    for i, entry in enumerate(reader.items("layers")):
        found, together = _entry(Reader(entry, f"{where}: layers[{i}]", errors, LAYER_KEYS))
        layers += found
        tied += [together] * len(found)
    if not layers and not errors:
        reader.wrong("layers", [], "at least one layer")
    if len(layers) > MOST_LAYERS:
        reader.fail(f"{where}: layers: expected at most {MOST_LAYERS} layers, got {len(layers)}")
    if not errors:
        twice = repeated([layer for stage in layers for layer in stage.layers])
        errors += [f"{where}: {line}" for line in twice]
        names = [layer.name for stage in layers for layer in stage.layers]
        sharing = read_tied(reader, {name: i for i, name in enumerate(names)}, "names of layers")
        cluster = replace(cluster, tied=sharing)
    if errors:
        raise InputError(*errors)
    return LayeredProfile(tuple(layers), (*tied[:-1], False), cluster)


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


def _entry(reader: Reader) -> tuple[list[StageProfile], bool]:
    """The layers that one entry stands for; whether none is cut from the one after it."""
    layer = read_layer(reader)
    repeat = reader.count("repeat", 1, MOST_LAYERS) if reader.has("repeat") else 1
    together = reader.has("with_next") and reader.get(
        "with_next", "true or false", lambda v: isinstance(v, bool), False
    )
    if reader.has("t_bw"):
        reader.fail(
            f"{reader.where}: t_bw: expected it of stages alone, as layers are cut by t_b and t_w"
        )
    cost = read_stage(reader)
    if repeat == 1:
        return [replace(cost, layers=(layer,))], together
    names = {"name": [layer.name] if layer.name else [], "modules": layer.modules}
    for key, values in names.items():
        if any("{}" not in value for value in values):
            reader.wrong(key, values[0], "{} in it, for the number of each repeated layer")
            break
    return [replace(cost, layers=(numbered(layer, n),)) for n in range(repeat)], together
