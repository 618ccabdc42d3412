"""Model sources: loading by name, cutting between layers, and invalid ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from examples.gpt import GPT, small
from examples.mlp import MLP
from pipeloom import Layer, Pipeline, measure
from pipeloom.ir import InputError
from pipeloom.runtime import LayeredSource, load_source
from tests.support.inside import checked_batch, most_stages
from tests.support.one_rank import FUSED, each, program

METHODS = ("stages", "tied", "loss", "batch", "optimizer")
TEXT = (
    "class Source:\n"
    + "".join(f"    def {name}(self, *_): ...\n" for name in METHODS)
    + "source = Source()\n"
    "class Partial:\n    def loss(self): ...\n"
    "def needs(argument): ...\n"
    "number = 3\n"
    "from torch import nn\nnet = nn.Linear(1, 1)\n"
)
NAMES = ["embedding", "blocks.0", "blocks.1", "blocks.2", "blocks.3", "head"]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"models_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(TEXT)
    (tmp_path / f"broken_{name}.py").write_text("raise RuntimeError('no data here')\n")
    (tmp_path / f"script_{name}.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


@pytest.mark.parametrize("attribute", ["source", "Source"])
def test_an_instance_or_a_callable_is_a_source(module: str, attribute: str) -> None:
    assert type(load_source(f"{module}:{attribute}")).__name__ == "Source"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("{}:missing", "{}:missing: .* has no attribute missing"),
        ("{}:numbr", "{}:numbr: .* has no attribute numbr; did you mean number\\?"),
        ("{}:number", "{}:number: int has no stages, tied, loss, batch, optimizer"),
        ("{}:net", "{}:net: Linear has no .*own-model.md makes a source of a module"),
        ("{}:Partial", "{}:Partial: .*Partial has no stages, tied, batch, optimizer"),
        ("{}:needs", "{}:needs: calling it without arguments failed: TypeError"),
        ("nothing", "expected MODULE:ATTRIBUTE"),
        ("nowhere_at_all:x", "No module named"),
        ("{}.py:x", "No module named .*'{}' is not a package"),
        ("broken_{}:x", "RuntimeError: no data here"),
        ("script_{}:x", "SystemExit: 0"),
    ],
)
def test_what_cannot_be_loaded_is_one_line(module: str, name: str, expected: str) -> None:
    with pytest.raises(InputError, match=expected.replace("{}", module)) as caught:
        load_source(name.replace("{}", module))
    assert "\n" not in str(caught.value)


@dataclass
class Cut:
    """A model of 24 layers that can be cut into the numbers of stages that ``divides`` accepts."""

    divides: Callable[[int], bool]

    def stages(self, count: int) -> list[Callable[[], nn.Module]]:
        if not self.divides(count):
            raise ValueError("no such cut")
        return [nn.Identity] * count


DIVISORS = Cut(lambda count: 24 % count == 0)


@pytest.mark.parametrize(
    ("source", "begin", "most"),
    [
        (GPT(), 2, 8),
        (GPT(cuts=(4, 2, 2)), 3, 3),
        (DIVISORS, 2, 8),  # not into 10
        (DIVISORS, 6, 12),
        (Cut(lambda count: count in {2, 4, 6, 7, 16}), 2, 7),
        (Cut(lambda count: True), 2, None),
    ],
)
def test_the_most_stages_of_a_source_can_be_made_and_so_can_all_multiples_below(
    source: Any, begin: int, most: int | None
) -> None:
    assert most_stages(source, begin) == most
    for multiple in (*range(begin, most or begin, begin), most or begin):
        assert len(source.stages(multiple)) == multiple


X = [torch.zeros(2, 4)] * 3


class Made(MLP):
    """A source whose ``batch`` returns a given value."""

    given: Any = ()

    def batch(self, step: int, microbatches: int) -> Any:
        return self.given


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (
            (torch.zeros(6, 4), X),
            "inputs: expected a list of 3 tensors, one per microbatch, "
            "got one tensor [6, 4]: tensor.chunk(3) cuts it",
        ),
        (
            (X, [1, 2, 3]),
            "targets: expected a list of 3 tensors, one per microbatch, got a list of 3 (int)",
        ),
    ],
)
def test_a_wrong_batch_is_named(batch: object, expected: str) -> None:
    source = Made()
    source.given = batch
    with pytest.raises(InputError) as caught:
        checked_batch(source, 0, 3)
    assert str(caught.value).startswith("Made.batch(0, 3): ")
    assert str(caught.value).endswith(expected)


def cut(source: GPT, *starts: int) -> LayeredSource:
    parts = tuple(tuple(NAMES[a:b]) for a, b in pairwise((*starts, len(NAMES))))
    return LayeredSource(source, parts)


def modules(source: Any, count: int) -> list[Any]:
    return [stage() for stage in source.stages(count)]


def test_tied_layers_are_one_parameter_in_a_stage_and_a_group_across_stages() -> None:
    model = replace(small(), tie_weights=True)
    (alone,) = modules(cut(model, 0), 1)
    assert alone.get_parameter("0.symbols.weight") is alone.get_parameter("5.symbols.weight")
    assert cut(model, 0).tied(1) == ()
    assert cut(model, 0, 1, 4).tied(3) == (((0, "0.symbols.weight"), (2, "1.symbols.weight")),)
    first, _, last = modules(cut(model, 0, 1, 4), 3)
    assert torch.equal(first[0].symbols.weight, last[1].symbols.weight)
    assert cut(small(), 0, 1).tied(2) == ()
    assert cut(model, 0, 3).tied(2) == tuple(model.tied(2))  # as the model's own method


def planned(source: Any, parts: Sequence[Sequence[str]]) -> list[int]:
    """The number of parameters of each stage of a pipeline planned with these layers."""
    profile = program(each(FUSED, 2)).schedule.problem.profile
    stages = [
        replace(stage, layers=tuple(Layer(name) for name in part))
        for stage, part in zip(profile.stages, parts, strict=True)
    ]
    plan = program(each(FUSED, 2), profile=replace(profile, stages=tuple(stages)))
    pipeline = Pipeline.from_source(plan, source, train=False)
    return [len(list(module.parameters())) for module in pipeline.modules.values()]


def test_a_plan_by_layers_says_how_the_model_is_cut() -> None:
    embedding, rest = planned(small(), [NAMES[:1], NAMES[1:]])
    assert embedding < 3 < rest
    as_it_is = planned(small(), [[], []])
    assert as_it_is == [len(list(stage.parameters())) for stage in modules(small(), 2)]
    assert as_it_is != [embedding, rest]
    assert len(planned(MLP(), [["a"], ["b"]])) == 2  # it has no layers
    with pytest.raises(InputError, match=r"^profile: stages: expected the layers of GPT, emb"):
        planned(small(), [["embedding"], ["blocks.0", "head"]])


class Shares(MLP):
    def tied(self, count: int) -> Sequence[Sequence[tuple[int, str]]]:
        return [[(0, "0.weight"), (1, "0.weight")]]


def test_what_a_source_lacks_is_one_line() -> None:
    with pytest.raises(InputError, match=r"^MLP: named_layers: missing"):
        measure(MLP(), layers=True, ranks=2)
    with pytest.raises(InputError, match="tied_layers: missing"):
        LayeredSource(Shares(), (("a",), ("b",))).tied(2)
