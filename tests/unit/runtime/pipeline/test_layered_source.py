"""A model cut between its layers: the same modules however it is cut, and one parameter where
layers share it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import log
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from examples.gpt import GPT, small
from examples.mlp import MLP
from pipeloom.cli.main import main
from pipeloom.ir import InputError, Layer, Profile, StageProfile
from pipeloom.runtime import LayeredSource
from pipeloom.runtime.pipeline.layered_source import as_planned, by_layers
from pipeloom.runtime.stages.store import made

NAMES = ["embedding", "blocks.0", "blocks.1", "blocks.2", "blocks.3", "head"]


def cut(source: GPT, *starts: int) -> LayeredSource:
    parts = tuple(tuple(NAMES[a:b]) for a, b in pairwise((*starts, len(NAMES))))
    return LayeredSource(source, parts)


def modules(source: Any, count: int) -> list[nn.Module]:
    return [made(stage, s) for s, stage in enumerate(source.stages(count))]


def whole(stages: Sequence[nn.Module]) -> torch.Tensor:
    (tokens,), _ = small().batch(0, 1)
    out: torch.Tensor = nn.Sequential(*stages)(tokens)
    return out


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("starts", [(0,), (0, 1), (0, 3), (0, 1, 5), (0, 1, 2, 3, 4, 5)])
def test_it_is_the_same_model_wherever_it_is_cut(tied: bool, starts: tuple[int, ...]) -> None:
    model = replace(small(), tie_weights=tied)
    found = whole(modules(cut(model, *starts), len(starts)))
    assert torch.equal(found, whole(modules(model, 2)))


def test_tied_layers_are_one_parameter_in_a_stage_and_a_group_across_stages() -> None:
    model = replace(small(), tie_weights=True)
    (alone,) = modules(cut(model, 0), 1)
    assert alone.get_parameter("0.symbols.weight") is alone.get_parameter("5.symbols.weight")
    assert cut(model, 0).tied(1) == ()
    assert cut(model, 0, 1, 4).tied(3) == (((0, "0.symbols.weight"), (2, "1.symbols.weight")),)
    assert cut(small(), 0, 1).tied(2) == ()
    # as the model itself says of the same cut
    assert cut(model, 0, 3).tied(2) == tuple(model.tied(2))


def profile(parts: Sequence[Sequence[str]]) -> Profile:
    stage = StageProfile(1.0, 1.0, 1.0)
    stages = [replace(stage, layers=tuple(Layer(name) for name in part)) for part in parts]
    return Profile(tuple(stages), ranks=len(parts))


def test_a_plan_by_layers_says_how_the_model_is_cut() -> None:
    planned = as_planned(small(), profile([NAMES[:1], NAMES[1:]]))
    sizes = [len(list(module.children())) for module in modules(planned, 2)]
    assert sizes == [1, 5]
    assert as_planned(MLP(), profile([["a"], ["b"]])).__class__ is MLP
    unnamed = Profile((StageProfile(1.0, 1.0, 1.0),) * 2, ranks=2)
    assert isinstance(as_planned(small(), unnamed), GPT)
    with pytest.raises(
        InputError, match=r"^profile: stages: expected the layers of GPT, embedding"
    ):
        as_planned(small(), profile([["embedding"], ["blocks.0", "head"]]))


def test_what_a_source_lacks_is_one_line() -> None:
    with pytest.raises(InputError, match=r"^MLP: named_layers: missing"):
        by_layers(MLP())

    class Shares(MLP):
        def tied(self, count: int) -> Sequence[Sequence[tuple[int, str]]]:
            return [[(0, "0.weight"), (1, "0.weight")]]

    with pytest.raises(InputError, match="tied_layers: missing"):
        LayeredSource(Shares(), (("a",), ("b",))).tied(2)


def tied_small() -> GPT:
    return replace(small(), tie_weights=True)


def test_from_measured_layers_to_steps_of_the_planned_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layers, schedule, program = (tmp_path / f"{name}.json" for name in ("l", "s", "p"))
    model = ["--model", f"{__name__}:tied_small"]

    def pipeloom(*words: object) -> str:
        capsys.readouterr()
        assert main([str(word) for word in words]) == 0
        return capsys.readouterr().out

    measured = ["--layers", "--ranks", 2, "--repeats", 1, "--warmup", 0, "--pairs", "--offload"]
    pipeloom("profile", *model, *measured, "-o", layers)
    document = json.loads(layers.read_text())
    assert [layer["name"] for layer in document["layers"]] == NAMES
    assert [layer["kind"] for layer in document["layers"][:2]] == ["embedding", "block"]
    assert all(layer["t_fb"] > 0 and layer["m_o"] < layer["m_b"] for layer in document["layers"])
    assert document["tied"] == [[NAMES[0], NAMES[-1]]]
    assert document["host_link"]["gigabytes_per_second"] > 0
    # a cut that the model's own stages cannot have: the embedding by itself
    for layer in document["layers"][1:-1]:
        layer["with_next"] = True
    layers.write_text(json.dumps(document))
    words = ["-m", 2, "--offload", "none", "--work-limit", 0.1, "--solver", "heuristic", "-q"]
    names = tmp_path / "names.json"
    pipeloom("optimize", layers, *words, "-o", schedule)
    pipeloom("export", schedule, "--to", "torchtitan", "-o", names)
    assert json.loads(names.read_text()) == [NAMES[:1], NAMES[1:]]
    pipeloom("compile", schedule, "-o", program)
    assert "reduce 0 1" in json.loads(program.read_text())["instructions"][0]
    out = pipeloom("run", program, *model, "--steps", 2)
    first = float(out.split()[out.split().index("loss") + 1])
    assert first == pytest.approx(log(256), rel=0.03)  # of a model that knows nothing of 256 bytes
