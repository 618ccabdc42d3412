"""Layers: the parts between which a model can be cut into stages, with their kinds and names."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any

from pydantic import ValidationInfo

from ..documents.fields import Name
from ..documents.struct import Struct
from ..documents.validation import Expected


class LayerKind(Enum):
    """The kind of a layer, as distinguished in the pipeline layouts of other systems (Megatron-LM).

    MTP is a multi-token prediction layer.
    """

    EMBEDDING = "embedding"
    BLOCK = "block"
    MTP = "mtp"
    HEAD = "head"
    LOSS = "loss"


@dataclass(frozen=True, slots=True)
class Layer(Struct):
    """A part of the model that is never cut.

    ``modules``: the names, in the model, of the modules that the layer consists of; empty for a
    loss that no module computes. In files, the default is a single module with the layer's name.
    """

    name: Name
    kind: LayerKind = LayerKind.BLOCK
    modules: Annotated[tuple[Name, ...], Expected("a list of names")] = ()

    @classmethod
    def _before(cls, data: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        name = data.get("name")
        is_name = isinstance(name, str) and name.isprintable()  # else only the name is a fault
        return {"modules": [name] if is_name and name else []} | data

    def values(self) -> dict[str, Any]:
        is_default = self.modules == (self.name,)
        return Struct.values(self) | {"modules": None if is_default else list(self.modules)}
