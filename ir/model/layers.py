"""Layers, between which a model is cut: their kinds and names."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class LayerKind(Enum):
    """The kinds of layers that the layouts of other systems distinguish."""

    EMBEDDING = "embedding"
    BLOCK = "block"
    MTP = "mtp"
    HEAD = "head"
    LOSS = "loss"


@dataclass(frozen=True, slots=True)
class Layer:
    """A part of the model that is never cut.

    ``modules``: the model's names of the modules that it consists of; empty for a loss that no
    module computes.
    """

    name: str
    kind: LayerKind = LayerKind.BLOCK
    modules: tuple[str, ...] = ()
