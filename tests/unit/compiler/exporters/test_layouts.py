"""Layouts for torchtitan and Megatron: read back by their own rules they are the layers of the
cut."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import pytest

from pipeloom.compiler.exporters import EXPORTERS
from pipeloom.ir.errors import InputError
from pipeloom.ir.model.layered_profile import LayeredProfile
from pipeloom.ir.model.layers import Layer, LayerKind
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.solver.construct.one_at_a_time import one_at_a_time
from pipeloom.solver.families import build_family
from tests.support.layered_profiles import layer, model

CUT = (0, 3, 5, 6)


def scheduled(profile: LayeredProfile, cut: Sequence[int], placement: Placement) -> Schedule:
    stages = profile.cut(cut)
    problem = Problem(stages, 2, placement, stages.limit_from(None))
    return Schedule(problem, one_at_a_time(problem))


def linear(cut: Sequence[int] = CUT) -> Schedule:
    return scheduled(model(6, Profile((), len(cut))), cut, Placement.linear(len(cut)))


def export(name: str, schedule: Schedule) -> str:
    return EXPORTERS[name].write(schedule)


def expanded(layout: str) -> list[str]:
    """Each part's letters, as Megatron documents the string: commas mean nothing, x*3 is xxx."""
    plain = re.sub(r"(.)\*(\d+)", lambda m: m[1] * int(m[2]), layout.strip().replace(",", ""))
    return plain.split("|")


def test_torchtitan_gets_the_modules_of_each_stage() -> None:
    parts = json.loads(export("torchtitan", linear()))
    assert parts == [
        ["emb", "layers.0", "layers.1"],
        ["layers.2", "layers.3"],
        ["layers.4"],
        ["layers.5", "out", "loss"],
    ]
    document = tomllib.loads(export("torchtitan-toml", linear()))
    assert document == {
        "parallelism": {"pipeline_parallel_degree": 4, "module_fqns_per_model_part": parts}
    }


def hugging_face(*before: str, layers: str = "model.layers", head: str = "lm_head") -> Schedule:
    """Two stages of a model with such modules, of four layers."""
    whole = model(4, Profile((), 2))
    names = [before, *((f"{layers}.{i}",) for i in range(4)), (head,), ()]
    named = tuple(
        replace(each, layers=tuple(replace(x, modules=found) for x in each.layers))
        for each, found in zip(whole.layers, names, strict=True)
    )
    return scheduled(replace(whole, layers=named), (0, 3), Placement.linear(2))


def test_torchtitan_gets_its_own_names_of_hugging_face_models_and_rotations_in_every_part() -> None:
    schedule = hugging_face("model.embed_tokens", "model.rotary_emb")
    assert json.loads(export("torchtitan", schedule)) == [
        ["tok_embeddings", "rotary_emb", "layers.0", "layers.1"],
        ["layers.2", "layers.3", "lm_head", "rotary_emb"],
    ]
    (_, note, *_) = EXPORTERS["torchtitan"].launch(schedule, 1).notes
    assert note.startswith("names are those of torchtitan's transformers_modeling_backend")


def test_other_models_keep_their_names_and_a_note_says_what_for() -> None:
    schedule = hugging_face("gpt.embed", "gpt.rotary_emb", layers="gpt.h", head="gpt.out")
    assert json.loads(export("torchtitan", schedule)) == [
        ["gpt.embed", "gpt.rotary_emb", "gpt.h.0", "gpt.h.1"],
        ["gpt.h.2", "gpt.h.3", "gpt.out", "gpt.rotary_emb"],
    ]
    notes = EXPORTERS["torchtitan"].launch(schedule, 1).notes
    assert any("not gpt.embed: the list is for a splitter of your own" in note for note in notes)
    plain = EXPORTERS["torchtitan"].launch(linear(), 1).notes
    assert not any("splitter" in note or "backend" in note for note in plain)


def test_megatron_gets_a_letter_a_layer() -> None:
    text = export("megatron-layout", linear())
    assert text == "Et*2|t*2|t|tL\n"
    assert expanded(text) == ["Ett", "tt", "t", "tL"]


@pytest.mark.parametrize("cut", [(0, 1, 4, 7), (0, 2, 4, 6), (0, 5, 6, 7), (0, 1, 2, 3)])
def test_no_layer_is_lost_or_moved(cut: tuple[int, ...]) -> None:
    schedule = linear(cut)
    stages = schedule.problem.profile.stages
    modules = json.loads(export("torchtitan", schedule))
    assert modules == [[m for layer in stage.layers for m in layer.modules] for stage in stages]
    assert list(chain.from_iterable(modules)) == [
        "emb",
        *(f"layers.{i}" for i in range(6)),
        "out",
        "loss",
    ]
    parts = expanded(export("megatron-layout", schedule))
    assert "".join(parts) == "E" + "t" * 6 + "L"
    for part, stage in zip(parts, stages, strict=True):
        assert part.count("t") == sum(layer.kind is LayerKind.BLOCK for layer in stage.layers)


def test_interleaved_parts_are_in_the_order_of_stages() -> None:
    schedule = scheduled(model(6, Profile((), 2)), CUT, Placement.interleaved(2, 2))
    assert export("megatron-layout", schedule) == "Et*2|t*2|t|tL\n"


def refused(name: str, schedule: Schedule) -> str:
    with pytest.raises(InputError) as caught:
        export(name, schedule)
    return str(caught.value)


def test_megatron_has_no_v() -> None:
    schedule = scheduled(model(6, Profile((), 2)), CUT, Placement.v(2))
    assert "got stages on ranks [0, 1, 1, 0]" in refused("megatron-layout", schedule)
    assert json.loads(export("torchtitan", schedule))[3] == ["layers.5", "out", "loss"]


def test_head_and_loss_are_one_for_megatron() -> None:
    assert "a head or loss in stage 3 alone, got stage 2, stage 3" in refused(
        "megatron-layout", linear((0, 3, 6, 8))
    )


def test_megatron_wants_an_embedding_first() -> None:
    whole = model(6, Profile((), 4))
    bare = replace(whole, layers=whole.layers[1:], tied=whole.tied[1:])
    assert "profile: stages: layers: megatron-layout expects an embedding, got none" in refused(
        "megatron-layout", scheduled(bare, CUT, Placement.linear(4))
    )
    swapped = replace(whole, layers=(whole.layers[1], whole.layers[0], *whole.layers[2:]))
    assert "emb: megatron-layout expects embedding, blocks" in refused(
        "megatron-layout", scheduled(swapped, CUT, Placement.linear(4))
    )


def test_multi_token_prediction_comes_behind_the_blocks() -> None:
    whole = model(4, Profile((), 4))
    mtp = layer("mtp.0", LayerKind.MTP, 1.0, 1.0, 1.0, 1.0, 0.5)
    more = LayeredProfile((*whole.layers[:5], mtp, *whole.layers[5:]), (False,) * 8, whole.cluster)
    schedule = scheduled(more, (0, 3, 5, 6), Placement.linear(4))
    assert expanded(export("megatron-layout", schedule)) == ["Ett", "tt", "m", "L"]


@pytest.mark.parametrize("name", ["torchtitan", "torchtitan-toml", "megatron-layout"])
def test_stages_without_layers_are_refused(name: str) -> None:
    profile = Profile((StageProfile(1.0, 1.0, 1.0),) * 2, 2)
    line = refused(name, build_family("1f1b", profile, 2))
    assert line.startswith("profile: stages[0]: layers: missing; expected the layers")
    travelling = build_family("fsdp", profile, 2)
    assert "passing: " in refused(name, travelling)


def test_a_loss_has_no_module_unless_it_is_given_one() -> None:
    assert Layer("loss", LayerKind.LOSS).modules == ()
