"""What is saved is named as in the whole model: by layers, by the source, tied or not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pipeloom import Layer
from pipeloom.runtime.pipeline.state_names import layer_name, layer_names, state_names


@pytest.mark.parametrize(
    ("modules", "name", "found"),
    [
        (("model.layers.3",), "mlp.weight", "model.layers.3.mlp.weight"),
        (("norm", "output"), "0.weight", "norm.weight"),
        (("norm", "output"), "1.bias", "output.bias"),
        (("norm", "output"), "scale", "head.scale"),
        ((), "1.bias", "head.1.bias"),
    ],
)
def test_a_layers_modules_are_the_models_names(
    modules: tuple[str, ...], name: str, found: str
) -> None:
    assert layer_name(Layer("head", modules=modules), name) == found


def test_stages_of_layers_are_told_by_the_source_where_it_does() -> None:
    layers = {name: Layer(name, modules=(f"m.{name}",)) for name in ("a", "b", "c")}
    parts = (("a", "b"), ("c",))
    assert layer_names(parts, layers)(0, "1.w") == "m.b.w"
    own = layer_names(parts, layers, lambda layer, name: f"{layer.name}/{name}")
    assert [own(0, "0.w"), own(1, "0.w")] == ["a/w", "c/w"]


class Shared(nn.Module):
    """Two names of one parameter, a buffer that is saved and one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2, bias=False)
        self.again = nn.Linear(2, 2, bias=False)
        self.again.weight = self.first.weight
        self.register_buffer("kept", torch.zeros(1))
        self.register_buffer("left", torch.zeros(1), persistent=False)


def test_of_what_is_tied_the_first_copy_has_all_names() -> None:
    modules = {0: Shared(), 2: nn.Linear(2, 2)}
    tied = [[(0, "first.weight"), (2, "weight")]]
    found = state_names(modules, tied, lambda s, name: f"s{s}.{name}", lambda value: [value])
    assert found == {
        (0, "first.weight"): ("s0.first.weight", "s2.weight"),
        (0, "again.weight"): ("s0.first.weight", "s0.again.weight"),
        (0, "kept"): ("s0.kept",),
        (2, "weight"): ("s0.first.weight",),
        (2, "bias"): ("s2.bias",),
    }


def test_wrappers_of_torch_are_no_part_of_a_name() -> None:
    compiled = nn.Module()
    compiled.add_module("_orig_mod", nn.Linear(2, 2))  # as torch.compile calls it
    found = state_names({0: compiled}, [], None, lambda value: [value])
    assert found[0, "_orig_mod.weight"] == ("weight",)
