"""The state of a pipeline of one rank: buffers, frozen parameters, other programs, whole models."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipeloom import InputError, LossScale, Pipeline, compile_schedule
from pipeloom.runtime.pipeline import pipeline as module
from tests.support.schedules import schedule


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


def stepped(pipeline: Pipeline, steps: Iterable[int], *, update: bool = True) -> list[float]:
    history = []
    for step in steps:
        torch.manual_seed(step)
        x, losses = torch.randn(8, 4), list[Tensor]()
        pipeline.step(x, target=x.flip(1), losses=losses, update=update)
        history += [loss.item() for loss in losses]
    return history


def test_a_barrier_that_the_plan_is_without_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "made_without_barrier", lambda _: "late")
    with pytest.warns(UserWarning, match="late"):
        made(clip_grad_norm=1.0)
    assert made().barrier_note is None


def test_buffers_frozen_parameters_and_extra_state_go_on() -> None:
    first, second = made(), made()
    stepped(first, range(2))
    state = first.state_dict()
    assert {"0.weight", "1.running_mean", "2._extra_state"} < state["model"].keys()
    assert not any(key.startswith("state.0.") for key in state["optimizer"])
    second.load_state_dict(state)
    assert stepped(second, range(2, 4)) == stepped(first, range(2, 4))
    for name, value in first.modules[0].state_dict().items():
        assert torch.equal(
            torch.as_tensor(value), torch.as_tensor(second.modules[0].state_dict()[name])
        )


def test_a_state_is_no_copy_but_loading_makes_none_its_own() -> None:
    first, second = made(), made()
    stepped(first, range(1))
    second.load_state_dict(first.state_dict())
    stepped(second, range(1, 2))
    kept = first.state_dict()["optimizer"]["state.2.weight.step"]
    assert kept.item() == 1.0


def test_the_whole_models_weights_alone_leave_the_optimizer() -> None:
    pipeline = made()
    stepped(pipeline, range(2))
    weights = made().modules[0].state_dict()
    pipeline.load_state_dict({"model": weights})
    assert torch.equal(pipeline.modules[0].state_dict()["2.weight"], weights["2.weight"])
    assert pipeline.state_dict()["optimizer"]["state.2.weight.step"].item() == 2.0


def test_gradients_that_add_up_are_never_lost_in_silence() -> None:
    """No state is given while they do; a state that is loaded begins without them."""
    first, second = made(), made()
    stepped(first, range(1))
    kept = {key: copy.deepcopy(value) for key, value in first.state_dict().items()}
    stepped(first, range(1, 2), update=False)
    with pytest.raises(InputError, match=r"^state_dict: expected it after a step that updates, go"):
        first.state_dict()
    first.load_state_dict(kept)
    second.load_state_dict(kept)
    for pipeline in (first, second):
        stepped(pipeline, range(2, 3))
    for name, value in second.state_dict()["model"].items():
        found = first.state_dict()["model"][name]
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(found))


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
    before = {name: torch.as_tensor(x).clone() for name, x in state["model"].items()}
    wrong = state | {section: state[section] | {key: value}}
    wrong["model"] = {
        name: torch.as_tensor(x) * 0 if name == "1.bias" else x
        for name, x in wrong["model"].items()
    }
    with pytest.raises(InputError) as caught:
        pipeline.load_state_dict(wrong)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
    after = pipeline.state_dict()["model"]
    assert all(torch.equal(x, torch.as_tensor(after[name])) for name, x in before.items())


def test_a_source_that_is_not_trained_needs_no_optimizer() -> None:
    class Evaluated:
        def stages(self, count: int) -> list[nn.Module]:
            return [nn.Linear(4, 4) for _ in range(count)]

        def tied(self, count: int) -> tuple[()]:
            return ()

        def loss(self, output: Tensor, target: Tensor) -> Tensor:
            return (output - target).square().mean()

    source: Any = Evaluated()
    pipeline = Pipeline.from_source(compile_schedule(schedule("1f1b", 1, 2)), source, train=False)
    batch = torch.ones(4, 4)
    assert pipeline.step(batch, target=batch) is not None
    pipeline.close()
