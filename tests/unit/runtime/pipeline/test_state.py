"""The state of a pipeline of one rank: buffers, frozen parameters, other programs, whole models,
and the names of what is saved."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipeloom import InputError, Layer, LossScale, Pipeline, compile_schedule
from pipeloom.runtime import LayeredSource
from tests.support.one_rank import PLAIN, program
from tests.support.schedules import schedule


class Counted(nn.Linear):
    """What no tensor holds is in its state, too."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.count = 0

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return super().forward(x)

    def get_extra_state(self) -> int:
        return self.count

    def set_extra_state(self, state: int) -> None:
        self.count = state


def made(**options: Any) -> Pipeline:
    """A frozen layer, one with a buffer, and one that has a counter of its own."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), Counted())
    module[0].requires_grad_(False)
    return Pipeline(
        compile_schedule(schedule("1f1b", 1, 2)),
        [module],
        loss=nn.functional.mse_loss,
        optimizer=partial(torch.optim.Adam, lr=0.1),
        **options,
    )


def stepped(pipeline: Pipeline, steps: Iterable[int], *, update: bool = True) -> list[float]:
    history = []
    for step in steps:
        torch.manual_seed(step)
        x, losses = torch.randn(8, 4), list[Tensor]()
        pipeline.step(x, target=x.flip(1), losses=losses, update=update)
        history += [loss.item() for loss in losses]
    return history


def tensors(section: Any) -> dict[str, Tensor]:
    return {name: torch.as_tensor(value).clone() for name, value in section.items()}


def assert_alike(one: Pipeline, other: Pipeline) -> None:
    found, wanted = (tensors(pipeline.state_dict()["model"]) for pipeline in (one, other))
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


def test_a_pipeline_goes_on_from_anothers_state_which_is_no_copy() -> None:
    first, second, weights = made(), made(), made().modules[0].state_dict()
    stepped(first, range(2))
    state = first.state_dict()
    assert {"0.weight", "1.running_mean", "2._extra_state"} < state["model"].keys()
    assert not any(key.startswith("state.0.") for key in state["optimizer"])
    second.load_state_dict(state)
    assert stepped(second, range(2, 4)) == stepped(first, range(2, 4))
    assert_alike(first, second)
    counted = [one.state_dict()["optimizer"]["state.2.weight.step"] for one in (first, second)]
    stepped(second, range(4, 5))
    assert [count.item() for count in counted] == [4.0, 5.0]  # loading has made none its own
    first.load_state_dict({"model": weights})  # the model alone leaves the optimizer
    assert torch.equal(first.modules[0].state_dict()["2.weight"], weights["2.weight"])
    assert counted[0].item() == 4.0


def test_gradients_that_add_up_are_never_lost_in_silence() -> None:
    """No state is given while they do; a state that is loaded begins without them."""
    first, second = made(), made()
    stepped(first, range(1))
    kept = copy.deepcopy(first.state_dict())
    stepped(first, range(1, 2), update=False)
    with pytest.raises(InputError, match=r"^state_dict: expected it after a step that updates, go"):
        first.state_dict()
    for pipeline in (first, second):
        pipeline.load_state_dict(kept)
        stepped(pipeline, range(2, 3))
    assert_alike(first, second)


def test_the_program_that_stepped_last_has_the_loss_scale() -> None:
    first = made(loss_scale=LossScale(8.0, interval=1))
    second = first.with_program(compile_schedule(schedule("1f1b", 1, 4)))
    stepped(second, range(2))
    assert first.state_dict()["loss_scale"] == {"scale": 32.0, "good": 0}
    first.load_state_dict({"loss_scale": {"scale": 2.0, "good": 0}})
    stepped(second, range(1))
    assert second.state_dict()["loss_scale"]["scale"] == 4.0


def test_a_pipeline_of_another_program_steps_by_a_steps_own_too() -> None:
    """It had no buffers to receive into, and ended with an AttributeError."""
    first, plain = made(), made()
    second = first.with_program(compile_schedule(schedule("1f1b", 1, 4)))
    own = compile_schedule(schedule("gpipe", 1, 2))
    x, found, expected = torch.linspace(0.0, 1.0, 16).view(4, 4), list[Tensor](), list[Tensor]()
    second.step(x, target=x, losses=found, program=own)
    plain.step(x, target=x, losses=expected, program=own)
    assert list(map(float, found)) == list(map(float, expected))
    assert len(found) == second.microbatches - 2 == 2
    first.close()


@pytest.mark.parametrize(
    ("section", "key", "value", "line"),
    [
        ("model", "2.weight", 3, "model.2.weight: expected a tensor, got 3"),
        ("optimizer", "state.2.weight.step", torch.zeros(2), "expected shape [], got [2]"),
        ("optimizer", "param_groups.2.weight.lr", "x", "lr: expected a number, got 'x'"),
        ("loss_scale", "scale", -1.0, "loss_scale: scale: expected more than 0, got -1.0"),
    ],
)
def test_what_is_wrong_is_one_line_and_changes_nothing(
    section: str, key: str, value: object, line: str
) -> None:
    pipeline = made(loss_scale=LossScale(8.0))
    stepped(pipeline, range(1))
    state = pipeline.state_dict()
    before = tensors(state["model"])
    wrong = state | {"model": state["model"] | {"1.bias": state["model"]["1.bias"] * 0}}
    wrong[section] = wrong[section] | {key: value}
    with pytest.raises(InputError) as caught:
        pipeline.load_state_dict(wrong)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
    after = tensors(pipeline.state_dict()["model"])
    assert all(torch.equal(x, after[name]) for name, x in before.items())


class Shared(nn.Module):
    """Two names of one parameter, a buffer that is saved and one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2, bias=False)
        self.again = nn.Linear(2, 2, bias=False)
        self.again.weight = self.first.weight
        self.register_buffer("kept", torch.zeros(1))
        self.register_buffer("left", torch.zeros(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.again(self.first(x))  # type: ignore[no-any-return]


def test_names_are_those_of_the_model_and_what_is_tied_has_all_of_its_names() -> None:
    wrapped = nn.Module()
    wrapped.add_module("_orig_mod", nn.Linear(2, 2))  # as torch.compile calls it
    pipeline = Pipeline(
        program(PLAIN, [(0, 1)]),
        [Shared(), wrapped],
        tied=[[(0, "first.weight"), (1, "_orig_mod.weight")]],
        names=lambda s, name: f"s{s}.{name}",
    )
    found = pipeline.state_dict()["model"]
    assert {*found} == {"s0.first.weight", "s0.again.weight", "s0.kept", "s1.weight", "s1.bias"}
    tied = [found[name] for name in ("s0.first.weight", "s0.again.weight", "s1.weight")]
    assert all(torch.equal(tied[0], other) for other in tied)


class Layered:
    """A source of layers, of which some say which modules of a model they are."""

    layers = (
        Layer("a", modules=("m.a",)),
        Layer("b", modules=("m.norm", "m.output")),
        Layer("c"),
    )

    def named_layers(self) -> list[tuple[Layer, Any]]:
        return [(layer, nn.Identity) for layer in self.layers]


class Naming(Layered):
    def layer_names(self) -> Any:
        return lambda layer, name: f"{layer.name}/{name}"


def test_a_layers_modules_are_the_models_names_unless_the_source_has_its_own() -> None:
    parts: Any = (("a",), ("b", "c"))
    for kind, wanted in (
        (Layered, ["m.a.w", "m.norm.w", "m.output.bias", "b.scale", "c.1.bias"]),
        (Naming, ["a/w", "b/0.w", "b/1.bias", "b/scale", "c/1.bias"]),
    ):
        source: Any = kind()
        names: Any = LayeredSource(source, parts).names(2)
        asked = [(0, "0.w"), (1, "0.0.w"), (1, "0.1.bias"), (1, "0.scale"), (1, "1.1.bias")]
        assert [names(*each) for each in asked] == wanted


class Evaluated:
    """A source without an optimizer."""

    def stages(self, count: int) -> list[nn.Module]:
        return [nn.Linear(4, 4) for _ in range(count)]

    def tied(self, count: int) -> tuple[()]:
        return ()

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return (output - target).square().mean()


def test_a_source_that_is_not_trained_needs_no_optimizer() -> None:
    source: Any = Evaluated()
    pipeline = Pipeline.from_source(compile_schedule(schedule("1f1b", 1, 2)), source, train=False)
    batch = torch.ones(4, 4)
    assert pipeline.step(batch, target=batch).shape == (4, 4)
    pipeline.close()
