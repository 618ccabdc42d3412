"""Layers' names and kinds as JSON, in a profile's ``layers`` and in those of a stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ..model.layers import Layer, LayerKind
from .json_reader import Reader, show

NAME_KEYS = ("name", "kind", "modules")
_KINDS = [kind.value for kind in LayerKind]


def read_layer(reader: Reader) -> Layer:
    """``modules`` is ``[name]`` where it is absent, and ``kind`` a block."""
    name = reader.get("name", "a name", lambda v: isinstance(v, str) and v != "", "")
    kind = LayerKind.BLOCK.value
    if reader.has("kind"):
        kind = reader.get("kind", ", ".join(_KINDS), lambda v: v in _KINDS, kind)
    modules = reader.items("modules") if "modules" in reader.data else [name] if name else []
    if not all(isinstance(module, str) and module for module in modules):
        reader.wrong("modules", modules, "a list of names")
        modules = []
    return Layer(name, LayerKind(kind), tuple(modules))


def read_names(reader: Reader) -> tuple[Layer, ...]:
    """The layers that a stage was cut from."""
    items = enumerate(reader.items("layers"))
    where = f"{reader.where}: layers"
    return tuple(
        read_layer(Reader(item, f"{where}[{i}]", reader.errors, NAME_KEYS)) for i, item in items
    )


def dump_layer(layer: Layer) -> dict[str, Any]:
    modules = {} if layer.modules == (layer.name,) else {"modules": list(layer.modules)}
    return {"name": layer.name, "kind": layer.kind.value, **modules}


def numbered(layer: Layer, number: int) -> Layer:
    """``{}`` in its names is the number of the layer among those that one entry stands for."""
    modules = tuple(module.replace("{}", str(number)) for module in layer.modules)
    return Layer(layer.name.replace("{}", str(number)), layer.kind, modules)


def repeated(layers: Sequence[Layer]) -> list[str]:
    """A line for each name of a layer, or else of a module, that is there twice."""
    names = Counter(layer.name for layer in layers)
    modules = Counter(module for layer in layers for module in layer.modules)
    for what, counted in (("name", names), ("modules", modules)):
        twice = sorted(name for name, number in counted.items() if number > 1)
        if twice:
            return [f"layers: {what}: expected {show(name)} once, got it twice" for name in twice]
    return []
