"""What ``step`` and ``eval`` take and give, as with ``torch.distributed.pipelining``: losses of all
kinds, batches that are nested, and what is refused."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pipeloom.compiler import compile_schedule
from pipeloom.ir import InputError, PipeloomError
from pipeloom.runtime import Pipeline
from pipeloom.runtime.rank.options import IN_MODEL
from tests.support.schedules import schedule
from tests.unit.runtime.pipeline.test_pipeline import (
    MICROBATCHES,
    SPLIT,
    batch,
    gradients,
    loss,
    program,
    stages,
)


def one_process(scale: float = 1.0) -> list[Tensor]:
    """Gradients of ``scale`` times the sum of the microbatches' losses."""
    x, y = batch()
    plain = stages()
    model = nn.Sequential(*plain)
    for part, target in zip(x.chunk(MICROBATCHES), y.chunk(MICROBATCHES), strict=True):
        (scale * loss(model(part), target)).backward()
    return gradients(plain)


def test_a_loss_takes_arguments_of_its_own_and_returns_metrics() -> None:
    x, y = batch()
    modules = stages()

    def weighted(output: Tensor, target: Tensor, *, weight: float) -> tuple[Tensor, Any]:
        found = loss(output, target) * weight
        return found, {"rows": len(output), "mean": output.mean()}

    pipeline = Pipeline(program(SPLIT), modules, loss=weighted)
    losses: list[Tensor] = []
    metrics: list[Any] = [None]
    pipeline.step(x, target=y, losses=losses, metrics=metrics, loss_kwargs={"weight": 3.0})
    torch.testing.assert_close(gradients(modules), one_process(3.0 / MICROBATCHES))
    assert [one["rows"] for one in metrics] == [2] * MICROBATCHES
    assert not any(one["mean"].requires_grad for one in metrics)
    pipeline.eval(x, target=y, losses=losses, metrics=metrics, loss_kwargs={"weight": 1.0})
    assert len(losses) == len(metrics) == MICROBATCHES
    pipeline.eval(x, losses=None, metrics=metrics)
    assert metrics == []


@dataclass
class Output:
    loss: Tensor | None
    logits: Tensor


class Judging(nn.Linear):
    """The last stage, which returns its loss in one of the ways in which models do."""

    def __init__(self, form: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__(4, 2)
        self.form = form

    def forward(self, x: Tensor, labels: Tensor | None = None, scale: float = 1.0) -> Any:
        out = super().forward(x)
        return out if labels is None else self.form(scale * loss(out, labels), out)


FORMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "scalar": lambda value, out: value,
    "tuple": lambda value, out: (value, out),
    "mapping": lambda value, out: {"loss": value, "logits": out},
    "attribute": Output,
}


def judging(form: Callable[[Tensor, Tensor], Any]) -> list[nn.Module]:
    first, last = stages()
    judge = Judging(form)
    judge.load_state_dict(last.state_dict())
    return [first, judge]


@pytest.mark.parametrize("form", FORMS)
def test_a_model_may_compute_its_loss(form: str) -> None:
    x, y = batch()
    modules = judging(FORMS[form])
    pipeline = Pipeline(program(SPLIT), modules, loss="model")
    losses: list[Tensor] = []
    output = pipeline.step(x, target={"labels": y, "scale": 3.0}, losses=losses)
    torch.testing.assert_close(gradients(modules), one_process(3.0 / MICROBATCHES))
    evaluated: list[Tensor] = []
    pipeline.eval(x, target={"labels": y, "scale": 3.0}, losses=evaluated)
    torch.testing.assert_close(losses, evaluated)
    if form == "mapping":
        assert output["logits"].shape == (6, 2)
    assert pipeline.eval(x).shape == (6, 2)  # no labels, no loss


class Taking(nn.Linear):
    """A first stage that takes what is nested."""

    def forward(self, batch: dict[str, Any], scale: float) -> Tensor:  # type: ignore[override]
        return scale * super().forward(batch["x"] + batch["more"][1])


def test_batches_and_targets_may_be_nested() -> None:
    x, y = batch()
    modules = [Taking(4, 4), nn.Linear(4, 2)]
    plain = [Taking(4, 4), nn.Linear(4, 2)]
    for module, other in zip(modules, plain, strict=True):
        other.load_state_dict(module.state_dict())
    pipeline = Pipeline(
        program(SPLIT), modules, loss=lambda out, t: loss(out, t["y"]) * t["weight"]
    )
    given = {"x": x, "more": ("no tensor", x)}
    output = pipeline.step(given, 2.0, target={"y": y, "weight": 0.5})
    wanted = plain[1](plain[0](given, 2.0))
    (loss(wanted, y) * 0.5).backward()
    torch.testing.assert_close(output, wanted)
    torch.testing.assert_close(gradients(modules), gradients(plain))
    parts = [{"x": part, "more": ("no tensor", part)} for part in x.chunk(MICROBATCHES)]
    targets = [{"y": part, "weight": 0.5} for part in y.chunk(MICROBATCHES)]
    torch.testing.assert_close(pipeline.eval(parts, 2.0, target=targets), wanted)
    torch.testing.assert_close(pipeline.eval(parts + parts, 2.0), torch.cat([wanted, wanted]))


x, y = batch()
BAD: dict[str, tuple[dict[str, Any], tuple[Any, ...], dict[str, Any], str]] = {
    "no loss": ({}, (x,), {"target": y}, "step: rank 0 runs the last stage: loss is missing"),
    "no target": ({"loss": loss}, (x,), {}, "target is missing"),
    "no input": ({"loss": loss}, (), {"target": y}, "its inputs are missing"),
    "a target that is no mapping": (
        {"loss": "model"}, (x,), {"target": y},
        "target: expected keyword arguments of the last stage, as in {'labels': labels}, with "
        "loss='model', got float32[6, 2]",
    ),
    "arguments of no loss": (
        {"loss": "model"}, (x,), {"target": {"labels": y}, "loss_kwargs": {"weight": 1}},
        "loss_kwargs: expected none with loss='model', whose arguments are the target's, got "
        "weight",
    ),
    "a model without a loss": (
        {"loss": "model"}, (x,), {},
        "expected the last stage to return a scalar tensor, an output with one as 'loss' or a "
        "tuple that begins with one, got float32[2, 2]",
    ),
    "a loss of many": (
        {"loss": lambda out, target: out - target}, (x,), {"target": y},
        "loss: expected a scalar tensor, or a tuple of one and metrics, got float32[2, 2]",
    ),
    "an array": (
        {"loss": loss}, ({"x": np.zeros((6, 4))},), {"target": y},
        "input 0: expected a tensor, or dicts and tuples of tensors and plain values, got ndarray",
    ),
    "a mapping of its own": (
        {"loss": loss}, (UserDict({"x": x}),), {"target": y}, "got UserDict, which is not cut",
    ),
    "an object with tensors": (
        {"loss": loss}, (x,), {"target": Output(None, y)}, "target: expected a tensor, or dicts",
    ),
    "nested ones unlike": (
        {"loss": loss}, ([{"x": x}, {"x": x}, {"y": x}],), {"target": y},
        "input 0: microbatch 2 is {'y': float32[6, 4]}, microbatch 0 {'x': float32[6, 4]}",
    ),
    "nested and not to be cut": (
        {"loss": loss}, ({"x": x[:5]},), {"target": y}, "input 0: float32[5, 4] cannot be cut into",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_said_in_one_line(name: str) -> None:
    options, inputs, given, message = BAD[name]
    with pytest.raises(PipeloomError) as caught:
        Pipeline(program(SPLIT), judging(FORMS["scalar"]), **options).step(*inputs, **given)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (([x], [x, x]), "eval: expected lists of one length on all ranks, got 1 microbatch and 2"),
        (([],), "eval: input 0: expected at least one microbatch, got none"),
        ((x[:4],), "input 0: float32.4, 4. cannot be cut into 3 equal microbatches"),
    ],
)
def test_an_evaluation_that_is_refused_hurts_nobody(given: tuple[Any, ...], message: str) -> None:
    pipeline = Pipeline(program(SPLIT), stages(), loss=loss)
    with pytest.raises(PipeloomError, match=message):
        pipeline.eval(*given)
    losses: list[Tensor] = []
    pipeline.step(x, target=y, losses=losses)
    with pytest.raises(InputError, match="target is missing"):
        pipeline.eval(x, losses=losses)
    assert pipeline.eval([x]).shape == (6, 2)
    assert all(module.training for module in pipeline.modules.values())


class Keyed(nn.Linear):
    """A whole model that takes keyword arguments alone, as Hugging Face's do."""

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        out = super().forward(x)
        return out if labels is None else (loss(out, labels), out)


def keyed() -> Pipeline:
    return Pipeline(
        compile_schedule(schedule("1f1b", 1, MICROBATCHES)), [Keyed(4, 2)], loss=IN_MODEL
    )


def test_lists_in_keyword_arguments_and_their_targets_say_how_many_microbatches_there_are() -> None:
    pipeline, count = keyed(), 10
    x = [torch.randn(2, 4) for _ in range(count)]
    losses: list[Tensor] = []
    assert len(pipeline.eval(x=x)) == 2 * count
    pipeline.eval(x=torch.cat(x), target={"labels": [torch.zeros(2, 2)] * count}, losses=losses)
    assert len(losses) == count
    with pytest.raises(InputError) as caught:
        pipeline.eval(x=x, target={"labels": [torch.zeros(2, 2)] * 3})
    assert str(caught.value) == (
        "eval: expected lists of one length on all ranks, got 3 microbatches and 10 microbatches"
    )
    assert len(pipeline.eval(x=x)) == 2 * count  # goes on
