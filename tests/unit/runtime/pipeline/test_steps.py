"""Arguments and results of ``step`` and ``eval`` on one rank, as in
``torch.distributed.pipelining``: all kinds of losses, nested batches, outputs and gradients; and
refused arguments."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pipeloom.ir import InputError, PipeloomError, parse_instruction
from pipeloom.runtime import ExecutionError, Pipeline, ShapeError
from tests.support.one_rank import FUSED, SPLIT, Of, each, program

MICROBATCHES = 3
ROW = each(SPLIT, MICROBATCHES)
Y = torch.randn(6, 2, generator=torch.Generator().manual_seed(2))
X = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))


def stages() -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 2)]


def loss(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).pow(2).mean()


def made(modules: Sequence[nn.Module] | None = None, row: str = ROW, **options: Any) -> Pipeline:
    options = {"loss": loss} | options
    return Pipeline(program(row), stages() if modules is None else modules, **options)


def gradients(modules: Sequence[nn.Module]) -> list[Tensor]:
    return [p.grad for m in modules for p in m.parameters() if p.grad is not None]


def one_process(scale: float) -> list[Tensor]:
    """Gradients of ``scale`` times the sum of the microbatches' losses."""
    plain = stages()
    model = nn.Sequential(*plain)
    for part, target in zip(X.chunk(MICROBATCHES), Y.chunk(MICROBATCHES), strict=True):
        (scale * loss(model(part), target)).backward()
    return gradients(plain)


def weighted(output: Tensor, target: Tensor, *, weight: float) -> Tensor:
    return loss(output, target) * weight


def test_a_loss_takes_arguments_of_its_own() -> None:
    modules = stages()
    pipeline = made(modules, loss=weighted)
    losses: list[Tensor] = []
    pipeline.step(X, target=Y, losses=losses, loss_kwargs={"weight": 3.0})
    torch.testing.assert_close(gradients(modules), one_process(3.0 / MICROBATCHES))
    pipeline.eval(X, target=Y, losses=losses, loss_kwargs={"weight": 1.0})
    assert len(losses) == MICROBATCHES


@dataclass
class Output:
    loss: Tensor | None
    logits: Tensor


def judged(m: Any, x: Tensor, labels: Tensor | None = None) -> Output:
    out = m.layer(x)
    return Output(None if labels is None else loss(out, labels), out)


def test_a_model_may_compute_its_loss() -> None:
    first, last = stages()
    modules = [Of(lambda m, x, labels=None: m.layer(x), layer=first), Of(judged, layer=last)]
    pipeline = made(modules, loss=lambda output, _: output.loss)
    losses, evaluated = list[Tensor](), list[Tensor]()
    pipeline.step(X, labels=Y, target=Y, losses=losses)
    torch.testing.assert_close(gradients(modules), one_process(1.0 / MICROBATCHES))
    pipeline.eval(X, labels=Y, target=Y, losses=evaluated)
    torch.testing.assert_close(losses, evaluated)
    assert pipeline.eval(X)[0].logits.shape == (2, 2)  # without labels there is no loss


def taking() -> nn.Module:
    """A first stage with nested arguments."""
    take = lambda m, batch, scale: scale * m.layer(batch["x"] + batch["more"][1])  # noqa: E731
    return Of(take, layer=nn.Linear(4, 4))


def test_batches_and_targets_may_be_nested() -> None:
    modules, plain = ([taking(), nn.Linear(4, 2)] for _ in range(2))
    for module, other in zip(modules, plain, strict=True):
        other.load_state_dict(module.state_dict())
    pipeline = made(modules, loss=lambda out, t: loss(out, t["y"]) * t["weight"])
    given = {"x": X, "more": ("no tensor", X)}
    output = pipeline.step(given, 2.0, target={"y": Y, "weight": 0.5})
    wanted = plain[1](plain[0](given, 2.0))
    (loss(wanted, Y) * 0.5).backward()
    torch.testing.assert_close(output, wanted)
    torch.testing.assert_close(gradients(modules), gradients(plain))
    parts = [{"x": part, "more": ("no tensor", part)} for part in X.chunk(MICROBATCHES)]
    targets = [{"y": part, "weight": 0.5} for part in Y.chunk(MICROBATCHES)]
    torch.testing.assert_close(pipeline.eval(parts, 2.0, target=targets), wanted)


BAD: list[tuple[dict[str, Any], tuple[Any, ...], dict[str, Any], str]] = [
    ({}, (X,), {"target": Y}, "step: rank 0 runs the last stage: loss is missing"),
    ({"loss": loss}, (X,), {}, "target is missing"),
    ({"loss": loss}, (), {"target": Y}, "its inputs are missing"),
    ({"loss": "model"}, (X,), {"target": Y}, "loss: expected a function, got 'model'"),
    ({"loss": torch.sub}, (X,), {"target": Y}, "loss: expected a scalar tensor, got float32[2, 2]"),
    ({"loss": loss}, ({"x": np.ones(6)},), {"target": Y}, "input 0: expected a tensor, or dicts"),
    ({"loss": loss}, (UserDict({"x": X}),), {"target": Y}, "got UserDict, which is not cut"),
    ({"loss": loss}, (X,), {"target": Output(None, Y)}, "target: expected a tensor, or dicts"),
    ({"loss": loss}, ({"x": X[:5]},), {"target": Y}, "input 0: float32[5, 4] cannot be cut into"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "inputs", "given", "message"), BAD)
def test_what_is_wrong_is_said_in_one_line(
    options: dict[str, Any], inputs: tuple[Any, ...], given: dict[str, Any], message: str
) -> None:
    with pytest.raises(PipeloomError) as caught:
        made(**{"loss": None} | options).step(*inputs, **given)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_evaluation_that_is_refused_hurts_nobody() -> None:
    pipeline = made()
    for given, message in (
        (([X],), "input 0: expected 3 microbatches, got 1"),
        ((X[:4],), "input 0: float32.4, 4. cannot be cut into 3 equal microbatches"),
    ):
        with pytest.raises(PipeloomError, match=message):
            pipeline.eval(*given)
    losses: list[Tensor] = []
    pipeline.step(X, target=Y, losses=losses)
    with pytest.raises(InputError, match="target is missing"):
        pipeline.eval(X, losses=losses)
    assert pipeline.eval(X).shape == (6, 2)
    assert all(module.training for module in pipeline.modules.values())


def test_lists_in_keyword_arguments_are_microbatches() -> None:
    module = Of(lambda m, x, labels=None: m.layer(x), layer=stages()[1])
    pipeline = made([module], each("0F{0} 0BW{0}", 3))
    x = [torch.randn(2, 4) for _ in range(3)]
    losses: list[Tensor] = []
    pipeline.eval(x=x, target=[torch.zeros(2, 2)] * 3, losses=losses)
    assert len(losses) == 3
    with pytest.raises(PipeloomError, match="labels: expected 3 microbatches, got 2"):
        pipeline.eval(x=x, labels=[torch.zeros(2, 2)] * 2)
    assert len(pipeline.eval(x=x)) == 6  # still works


@pytest.mark.parametrize(
    ("tied", "message"),
    [
        ([], "reduce 0 1: no parameter is tied between these stages: is tied= missing"),
        ([[(0, "0.weight"), (1, "head")]], "stage 1 has no parameter 'head'"),
        ([[(0, "0.weight"), (1, "weight")]], r"of one kind, got \[4, 4\] .* and \[2, 4\]"),
    ],
)
def test_wrong_ties_are_refused(tied: list[list[tuple[int, str]]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Pipeline(program(ROW, [(0, 1)]), stages(), loss=loss, tied=tied).step(X, target=Y)


def test_a_program_that_goes_on_after_a_step_is_not_clipped() -> None:
    """Each stage is stepped as soon as it is done, which is a valid program."""
    whole = program(each(FUSED, MICROBATCHES))
    (row,) = whole.instructions
    lines = [item for item in row if str(item) != "step 1"]
    at = max(i for i, item in enumerate(lines) if str(item).startswith("1BW")) + 1
    early = replace(whole, instructions=((*lines[:at], parse_instruction("step 1"), *lines[at:]),))
    sgd = partial(torch.optim.SGD, lr=1.0)
    Pipeline(early, stages(), loss=loss, optimizer=sgd)
    with pytest.raises(InputError, match="got '0BW2' after a step on rank 0"):
        Pipeline(early, stages(), loss=loss, optimizer=sgd, clip_grad_norm=1.0)


def calling(give: Callable[..., Any]) -> nn.Module:
    """A stage that returns ``give`` of its output."""
    return Of(
        lambda m, x, *more, **options: give(m.layer(x), *more, **options), layer=nn.Linear(4, 4)
    )


def handed_on(give: Any, last: nn.Module, **options: Any) -> Any:
    x = torch.ones(8, 4)
    return made([calling(give), last], each(SPLIT, 4)).step(x, target=x, **options)


def promise(calls: Any) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    return lambda y: (y, y * 2 if next(calls) else (y * 2).detach())


EDGE = "stage 0 .*: expected a tensor"
HANDED_ON: list[tuple[Any, nn.Module, type[PipeloomError], str]] = [
    (lambda y: {"y": y}, nn.Linear(4, 4), ShapeError, f"{EDGE} or a tuple .*, got dict"),
    (lambda y: (y, None), nn.Linear(4, 4), ShapeError, f"{EDGE} or a tuple .*, got tuple"),
    (lambda y: y.long(), nn.Linear(4, 4), ShapeError, f"{EDGE} of a floating dtype, got int64"),
    (lambda y: (), nn.Linear(4, 4), ShapeError, f"{EDGE} of a floating dtype, got none"),
    (
        lambda y: y, nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4)), ExecutionError,
        r"'1F0': .* changed in place: expected a copy",
    ),
    (
        promise(iter([False, True])), calling(lambda y, other: y + other), ExecutionError,
        r"0F0.*is \(float32\[2, 4\], float32\[2, 4\]\), was .* without grad",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("give", "last", "error", "message"), HANDED_ON)
def test_what_no_edge_can_carry_is_refused(
    give: Any, last: nn.Module, error: type[PipeloomError], message: str
) -> None:
    with pytest.raises(error, match=message):
        handed_on(give, last)


def test_options_are_cut_or_given_to_each_microbatch() -> None:
    seen: list[Any] = []

    def give(y: Tensor, *, scale: Tensor, name: str, parts: Tensor) -> Tensor:
        seen.append((scale.tolist(), name, parts.shape))
        return y

    parts = [torch.ones(j + 1) for j in range(4)]
    last = calling(lambda y, **_: y)
    handed_on(give, last, scale=torch.arange(8), name="x", parts=parts)
    assert seen[-4:] == [([2 * j, 2 * j + 1], "x", (j + 1,)) for j in range(4)]
    assert len(seen) == 8  # called once for each kind, as the shapes of ``parts`` differ


@pytest.mark.parametrize("pair", [(0, 0), (1, 0), (0, 4), (-1, 1)])
def test_skips_are_checked(pair: tuple[int, int]) -> None:
    with pytest.raises(InputError, match="expected pairs of stages 0 to 1, forward, got"):
        made(skips=[pair])
    with pytest.raises(ShapeError, match=r"stage 0 .*: 2 skips start here, got 1 outputs"):
        made(skips=[(0, 1), (0, 1)]).step(X, target=Y)
