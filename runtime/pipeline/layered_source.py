"""Model sources that define layers: they can be cut between any two layers.

A source defines its layers by the optional methods ``named_layers()``, ``tied_layers()`` and
``layer_names()``. A stage runs the modules of its layers in sequence, as ``nn.Sequential`` does,
except that a module may return several tensors, which are then the arguments of the next module.
If a parameter is tied between layers of the same stage, these layers share one object.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.layers import Layer
from pipeloom.ir.model.profile import Profile

from ..executor.outputs import as_tuple
from ..rank.options import ModelNames
from ..stages.store import Stage, made
from .model_source import ModelSource, skips_of

WANTED = "expected pairs of a pipeloom Layer and a function that returns its module"


def layers_of(source: ModelSource) -> list[tuple[Layer, Stage]] | None:
    """Returns ``source.named_layers()``: pairs of a layer and a function that creates its module.

    They are in forward order. Returns None if the source has no such method. Raises InputError if
    it returns anything else or layers with equal names, or if the source has skip connections
    between stages.
    """
    ask = getattr(source, "named_layers", None)
    if not callable(ask):
        return None
    name = f"{type(source).__name__}.named_layers()"
    value: Any = ask()
    found = list(value) if isinstance(value, Iterable) else [value]
    for i, entry in enumerate(found):
        match entry:
            case (Layer(), make) if callable(make):
                continue
        raise InputError(f"{name}[{i}]: {WANTED}, got {entry!r}")
    names = [layer.name for layer, _ in found]
    if not names or len(set(names)) < len(names):
        raise InputError(f"{name}: expected layers with different names, got {names}")
    if skips_of(source, len(found)):
        raise InputError(f"{name}: expected no skips between stages of a model that has layers")
    return found


def by_layers(source: ModelSource) -> tuple[ModelSource, list[Layer]]:
    """Returns a model source that has each layer of ``source`` as a stage, and the list of layers.

    Raises InputError if ``source`` defines no layers.
    """
    found = layers_of(source)
    if found is None:
        raise InputError(
            f"{type(source).__name__}: named_layers: missing; expected a method that returns pairs "
            "of a pipeloom Layer and a function that returns its module"
        )
    layers = [layer for layer, _ in found]
    return LayeredSource(source, tuple((layer.name,) for layer in layers)), layers


def as_planned(source: ModelSource, profile: Profile) -> ModelSource:
    """Returns a model source whose stages consist of the layers that the profile's stages name.

    Returns ``source`` itself if a stage of ``profile`` names no layers or if the source defines
    none. Raises InputError if profile and source have different layers.
    """
    parts = tuple(tuple(layer.name for layer in stage.layers) for stage in profile.stages)
    found = layers_of(source) if all(parts) else None
    if found is None:
        return source
    mine = [layer.name for layer, _ in found]
    planned = list(chain.from_iterable(parts))
    if planned != mine:
        raise InputError(
            f"profile: stages: expected the layers of {type(source).__name__}, {_brief(mine)}, got "
            f"{_brief(planned)}"
        )
    return LayeredSource(source, parts)


def _brief(names: Sequence[str]) -> str:
    if len(names) <= 4:
        return ", ".join(names)
    return f"{names[0]}, {names[1]}, ..., {names[-1]} ({len(names)})"


@dataclass(frozen=True)
class LayeredSource:
    """A model source that cuts ``source`` into given stages.

    ``parts``: for each stage, the names of its layers.
    """

    source: ModelSource
    parts: tuple[tuple[str, ...], ...]

    def stages(self, count: int) -> Sequence[Stage]:
        """Returns a function for each stage that creates its module; ``count`` is ignored."""
        return [partial(self._stage, part) for part in self.parts]

    def _stage(self, part: Sequence[str]) -> nn.Module:
        make = {layer.name: stage for layer, stage in layers_of(self.source) or ()}
        module = LayerSequence(*(made(make[name], i) for i, name in enumerate(part)))
        for group in self._groups():
            first, *others = [
                f"{part.index(layer)}.{parameter}" for layer, parameter in group if layer in part
            ] or [""]
            for other in others:
                _share(module, first, other)
        return module

    def tied(self, count: int) -> Sequence[Sequence[tuple[int, str]]]:
        """Returns groups of (stage, parameter name) that are one parameter.

        A group has at most one parameter name per stage. ``count`` is ignored.
        """
        stage_of = {name: s for s, part in enumerate(self.parts) for name in part}
        groups = []
        for group in self._groups():
            own: dict[int, str] = {}
            for layer, parameter in group:
                stage = stage_of[layer]
                own.setdefault(stage, f"{self.parts[stage].index(layer)}.{parameter}")
            if len(own) > 1:
                groups.append(tuple(own.items()))
        return tuple(groups)

    def names(self, count: int) -> ModelNames:
        """Returns a function of (stage, parameter name in it) that returns the name in the model.

        The names are defined by the source's ``layer_names()`` or, by default, :func:`layer_name`.
        ``count`` is ignored.
        """
        layers = {layer.name: layer for layer, _ in layers_of(self.source) or ()}
        own = getattr(self.source, "layer_names", None)
        name_of = layer_name if own is None else own()

        def named(stage: int, name: str) -> str:
            at, _, rest = name.partition(".")
            return str(name_of(layers[self.parts[stage][int(at)]], rest))

        return named

    def _groups(self) -> Sequence[Sequence[tuple[str, str]]]:
        ask = getattr(self.source, "tied_layers", None)
        if ask is None:
            if self.source.tied(len(self.parts)):
                raise InputError(
                    f"{type(self.source).__name__}: tied_layers: missing; expected groups of "
                    "(layer, parameter) that are one, as tied has them of stages"
                )
            return ()
        groups: Sequence[Sequence[tuple[str, str]]] = ask()
        known = set(chain.from_iterable(self.parts))
        for layer, _ in chain.from_iterable(groups):
            if layer not in known:
                raise InputError(
                    f"{type(self.source).__name__}.tied_layers(): expected names of its layers, "
                    f"got {layer!r}"
                )
        return groups

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return self.source.loss(output, target)

    def batch(self, step: int, microbatches: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        return self.source.batch(step, microbatches)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return self.source.optimizer(parameters)


class LayerSequence(nn.Sequential):
    """Modules that run in sequence, each with the tensors that the previous one has returned."""

    def forward(self, *tensors: Tensor) -> Tensor | tuple[Tensor, ...]:
        for layer in self:
            tensors = as_tuple(layer(*tensors))
        return tensors[0] if len(tensors) == 1 else tensors


def _share(module: nn.Module, first: str, other: str) -> None:
    """Makes the parameter named ``other`` the same object as the one named ``first``."""
    path, _, name = other.rpartition(".")
    setattr(module.get_submodule(path), name, module.get_parameter(first))


def layer_name(layer: Layer, name: str) -> str:
    """Returns the name in the whole model of the layer's parameter ``name``.

    ``layer.modules`` are the names in the model of the modules that the layer consists of. If there
    is one, the result is ``name`` prefixed by its name. If there are several and the first part of
    ``name`` is the number of one of them, as in ``nn.Sequential``, that part is replaced by the
    module's name. Otherwise the result is ``name`` prefixed by the layer's name.
    """
    if len(layer.modules) == 1:
        return f"{layer.modules[0]}.{name}"
    child, _, rest = name.partition(".")
    if child.isdecimal() and int(child) < len(layer.modules):
        return f"{layer.modules[int(child)]}.{rest}"
    return f"{layer.name}.{name}"
