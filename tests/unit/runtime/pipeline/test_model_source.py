"""Loading a model source by name: what works, and one readable line for what does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

from examples.gpt import GPT, small
from examples.mlp import MLP
from pipeloom.ir import InputError
from pipeloom.runtime import ModelSource, load_source
from pipeloom.runtime.models.by_name import METHODS
from pipeloom.runtime.pipeline.model_source import checked_batch, checked_stages, most_stages

GOOD = "class Source:\n" + "".join(f"    def {name}(self, *_): ...\n" for name in METHODS)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    text = GOOD + (
        "source = Source()\n"
        "class Partial:\n    def loss(self): ...\n"
        "def needs(argument): ...\n"
        "number = 3\n"
        "from torch import nn\nnet = nn.Linear(1, 1)\n"
    )
    name = f"models_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / f"broken_{name}.py").write_text("raise RuntimeError('no data here')\n")
    (tmp_path / f"script_{name}.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


@pytest.mark.parametrize("attribute", ["source", "Source"])
def test_an_instance_or_a_callable_is_a_source(module: str, attribute: str) -> None:
    assert type(load_source(f"{module}:{attribute}")).__name__ == "Source"


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        ("missing", "has no attribute missing"),
        ("number", "int has no stages, tied, loss, batch, optimizer"),
        ("net", "Linear has no .*own-model.md makes a source of a module"),
        ("Partial", "Partial has no stages, tied, batch, optimizer"),
        ("needs", "calling it without arguments failed: TypeError"),
    ],
)
def test_what_is_wrong_is_named(module: str, attribute: str, expected: str) -> None:
    with pytest.raises(InputError, match=expected) as caught:
        load_source(f"{module}:{attribute}")
    assert str(caught.value).startswith(f"{module}:{attribute}: ")
    assert "\n" not in str(caught.value)


@dataclass
class Cut:
    """A model of 24 layers, cut into as many stages as ``divides`` takes."""

    divides: Callable[[int], bool]

    def stages(self, count: int) -> list[Callable[[], nn.Module]]:
        if not self.divides(count):
            raise ValueError("no such cut")
        return [nn.Identity] * count


def test_the_most_stages_of_a_source_can_be_made_and_so_can_all_multiples_below() -> None:
    for source, begin, most in (
        (GPT(), 2, 8),
        (GPT(), 8, 8),
        (MLP(), 3, 8),
        (small(), 3, 4),
        (GPT(cuts=(4, 2, 2)), 3, 3),
        (Cut(lambda count: 24 % count == 0), 2, 8),  # not 10
        (Cut(lambda count: 24 % count == 0), 4, 12),
        (Cut(lambda count: 24 % count == 0), 6, 12),
        (Cut(lambda count: count in {2, 4, 6, 7, 16}), 2, 7),
        (Cut(lambda count: count == 5), 5, 5),
    ):
        model = cast(ModelSource, source)
        assert most_stages(model, begin) == most
        for multiple in (*range(begin, most + 1, begin), most):
            assert len(checked_stages(model, multiple)) == multiple
        with pytest.raises((InputError, ValueError)):
            checked_stages(model, most + 1)
    assert most_stages(cast(ModelSource, Cut(lambda count: True)), 2) is None


def test_names_and_modules_that_cannot_be_loaded(module: str) -> None:
    for name, expected in {
        "nothing": "expected MODULE:ATTRIBUTE",
        "nowhere_at_all:x": "No module named",
        f"{module}.py:x": f"expected the module, {module}, not its file",
        "./some/where.py:x": r"expected the module, some\.where, not its file",
        f"broken_{module}:x": "RuntimeError: no data here",
        f"script_{module}:x": "SystemExit: 0",
    }.items():
        with pytest.raises(InputError, match=expected):
            load_source(name)


class Made:
    """A source whose ``stages`` and ``batch`` give what they are told to."""

    def __init__(self, stages: object = (), batch: object = ()) -> None:
        self._stages, self._batch = stages, batch

    def stages(self, count: int) -> Any:
        return self._stages

    def batch(self, step: int, microbatches: int) -> Any:
        return self._batch


X = [torch.zeros(2, 4)] * 3


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (X[0], "expected a pair, inputs and targets, got one tensor [2, 4]"),
        (
            (torch.zeros(6, 4), X),
            "inputs: expected a list of 3 tensors, one a microbatch, "
            "got one tensor [6, 4]: tensor.chunk(3) cuts it",
        ),
        ((X, X[:2]), "targets: expected a list of 3 tensors, one a microbatch, got 2"),
        (
            (X, [1, 2, 3]),
            "targets: expected a list of 3 tensors, one a microbatch, got a list of 3 (int)",
        ),
    ],
)
def test_a_wrong_batch_is_named(batch: object, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        checked_batch(cast("ModelSource", Made(batch=batch)), 0, 3)
    assert str(caught.value).startswith("Made.batch(0, 3): ")
    assert str(caught.value).endswith(expected)
