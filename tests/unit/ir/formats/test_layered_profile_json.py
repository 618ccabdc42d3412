"""Profiles by layers: what an entry stands for, what is refused, and stages that know their
layers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeloom.ir.errors import UnsupportedError
from pipeloom.ir.formats import dump_profile, parse_profile
from pipeloom.ir.formats.profile_json import dump_layers, parse_layers
from pipeloom.ir.model.layered_profile import joined
from pipeloom.ir.model.layers import Layer, LayerKind
from tests.support.command_line import layers_document

COST = {"t_f": 1.0, "t_b": 2.0, "t_w": 1.0, "m_b": 1.0, "m_w": 0.5}


def test_an_entry_may_stand_for_several_layers() -> None:
    profile = parse_layers(layers_document(), "p.json")
    names = [layer.name for stage in profile.layers for layer in stage.layers]
    assert names == ["emb", *(f"layers.{i}" for i in range(6)), "norm", "loss"]
    assert profile.tied == (*[False] * 7, True, False)
    assert profile.layers[7].layers == (Layer("norm", LayerKind.HEAD, ("norm", "out")),)
    assert profile.layers[8].layers == (Layer("loss", LayerKind.LOSS, ()),)


def test_stages_sum_their_layers_and_know_them() -> None:
    cut = parse_layers(layers_document(), "p.json").cut((0, 3))
    first, last = cut.stages
    assert (first.t_f, first.t_b, first.t_w) == (2.5, 4.0, 2.5)
    assert (first.m_b, first.m_w, first.weight_bytes) == (2.25, 1.25, 40.0)
    assert (first.activation_bytes, last.weight_bytes) == (
        8.0,
        None,
    )  # of the loss nothing is known
    assert [layer.name for layer in first.layers] == ["emb", "layers.0", "layers.1"]
    again = parse_profile(dump_profile(cut), "written")
    assert again == cut
    assert again.split(2).stages[0].layers == ()


def test_layers_are_cut_into_no_more_than_the_most_stages() -> None:
    profile = parse_layers(layers_document(max_stages=2), "p.json")
    assert parse_layers(dump_layers(profile), "p.json") == profile
    assert profile.cut((0, 3)).max_stages == 2
    with pytest.raises(UnsupportedError, match="max_stages: expected at least 3, "):
        profile.cut((0, 3, 5))


def test_a_stage_can_what_all_of_its_layers_can() -> None:
    can = {"t_r": 1.0, "m_r": 0.25, "m_o": 0.0}
    layers = [{"name": name, **COST, **can} for name in "ab"] + [
        {"name": "c", **COST, "t_r": 1.0, "m_r": 0.5}
    ]
    first, last = parse_layers(layers_document(layers=layers), "p.json").cut((0, 2)).stages
    assert (first.t_r, first.m_r, first.m_o, first.offload_bytes) == (2.0, 0.5, 0.0, None)
    assert (last.t_r, last.m_r, last.m_o) == (1.0, 0.5, None)
    one = joined([replace(first, offload_bytes=3.0), first])
    assert one.offload_bytes == 5.0  # the other's M_B
    paired = joined([replace(first, t_fb=6.0), first])
    assert paired.t_fb == 6.0 + first.t_f + first.t_b + first.t_w
