"""The layers that a model is cut between: what each is, and what it is called."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class LayerKind(Enum):
    """The kinds of layers that other systems' layouts tell apart."""

    EMBEDDING = "embedding"
    BLOCK = "block"
    MTP = "mtp"
    HEAD = "head"
    LOSS = "loss"


@dataclass(frozen=True, slots=True)
class Layer:
    """A piece of the model that no cut divides.

    ``modules``: the model's names of what it consists of; a loss that no module computes has none.
    """

    name: str
    kind: LayerKind = LayerKind.BLOCK
    modules: tuple[str, ...] = ()
