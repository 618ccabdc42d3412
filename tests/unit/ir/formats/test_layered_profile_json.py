"""Profiles by layers: what an entry stands for, what is refused, and stages that know their
layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeloom.ir.errors import InputError, UnsupportedError
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


def lines(**changes: Any) -> list[str]:
    with pytest.raises(InputError) as caught:
        parse_layers(layers_document(**changes), "p.json")
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        ({"name": ""}, 'layers[0]: name: expected a name, got ""'),
        ({"name": 1, "repeat": 2}, "layers[0]: name: expected a name, got 1"),
        ({"kind": "head?"}, 'kind: expected embedding, block, mtp, head or loss, got "head?"'),
        ({"modules": "norm"}, 'modules: expected a list of names, got "norm"'),
        ({"modules": [1]}, "modules: expected a list of names, got [1]"),
        ({"repeat": 0}, "repeat: expected a whole number >= 1 and <= 512, got 0"),
        ({"repeat": 2}, 'name: expected {} in it, for the number of each repeated layer, got "a"'),
        ({"with_next": 1}, "with_next: expected true or false, got 1"),
        ({"t_f": -1}, "t_f: expected a finite number >= 0, got -1"),
        ({"name": "{}", "repeat": 513}, "repeat: expected a whole number >= 1 and <= 512, got 513"),
    ],
)
def test_a_wrong_entry_is_named(entry: dict[str, Any], line: str) -> None:
    (found,) = lines(layers=[{"name": "a", **COST, **entry}])
    assert found.startswith("p.json: layers[0]: ")
    assert found.endswith(line)


def test_names_are_there_once() -> None:
    twice = [{"name": "a", **COST}] * 2
    assert lines(layers=twice) == ['p.json: layers: name: expected "a" once, got it twice']
    modules = [{"name": name, "modules": ["m"], **COST} for name in "ab"]
    assert lines(layers=modules) == ['p.json: layers: modules: expected "m" once, got it twice']


def test_there_are_layers_and_not_too_many() -> None:
    assert lines(layers=[]) == ["p.json: layers: expected at least one layer, got []"]
    assert lines(layers=None) == ["p.json: layers: missing; expected a list"]
    many = [{"name": f"{name}{{}}", "repeat": 500, **COST} for name in "ab"]
    assert lines(layers=many) == ["p.json: layers: expected at most 512 layers, got 1000"]


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


def test_what_is_written_is_read_back() -> None:
    profile = parse_layers(layers_document(memory_limit=3.0), "p.json")
    assert parse_layers(dump_layers(profile), "p.json") == profile
