"""The state of a pipeline: buffers, frozen parameters, other programs, names of saved values, and
states that all ranks refuse."""

from __future__ import annotations

import copy
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from pipeloom import InputError, LossScale, Pipeline, compile_schedule
from tests.support.hub import on_threads, own
from tests.support.models import stepped
from tests.support.schedules import schedule
from tests.support.small_gpt import MICROBATCHES, SmallGPT, program_of

RANKS, STEPS = 2, 2
State: TypeAlias = Mapping[str, Any]


class Counted(nn.Linear):
    """Its state includes a value that is not in a tensor."""

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
    """A frozen layer, one with a buffer, and one with a counter."""
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


def losses_by(pipeline: Pipeline, steps: Iterable[int], *, update: bool = True) -> list[float]:
    history = []
    for step in steps:
        torch.manual_seed(step)
        x, losses = torch.randn(8, 4), list[Tensor]()
        pipeline.step(x, target=x.flip(1), losses=losses, update=update)
        history += [loss.item() for loss in losses]
    return history


def assert_has(pipeline: Pipeline, model: State) -> None:
    """Compare bitwise."""
    torch.testing.assert_close(pipeline.state_dict()["model"], model, rtol=0.0, atol=0.0)


def test_a_pipeline_goes_on_from_anothers_state_which_is_no_copy() -> None:
    first, second, weights = made(), made(), made().modules[0].state_dict()
    losses_by(first, range(2))
    state = first.state_dict()
    assert {"0.weight", "1.running_mean", "2._extra_state"} < state["model"].keys()
    assert not any(key.startswith("state.0.") for key in state["optimizer"])
    second.load_state_dict(state)
    assert losses_by(second, range(2, 4)) == losses_by(first, range(2, 4))
    assert_has(first, second.state_dict()["model"])
    counted = [one.state_dict()["optimizer"]["state.2.weight.step"] for one in (first, second)]
    losses_by(second, range(4, 5))
    assert [count.item() for count in counted] == [4.0, 5.0]  # loading does not share them
    first.load_state_dict({"model": weights})  # leaves the optimizer
    assert torch.equal(first.modules[0].state_dict()["2.weight"], weights["2.weight"])
    assert counted[0].item() == 4.0


def test_gradients_that_add_up_are_never_lost_in_silence() -> None:
    """While they accumulate, no state is returned; a loaded state begins without them."""
    first, second = made(), made()
    losses_by(first, range(1))
    kept = copy.deepcopy(first.state_dict())
    losses_by(first, range(1, 2), update=False)
    with pytest.raises(InputError, match=r"^state_dict: expected it after a step that updates, go"):
        first.state_dict()
    for pipeline in (first, second):
        pipeline.load_state_dict(kept)
        losses_by(pipeline, range(2, 3))
    assert_has(first, second.state_dict()["model"])


def test_the_program_that_stepped_last_has_the_loss_scale() -> None:
    pipeline, x = made(loss_scale=LossScale(8.0, interval=1)), torch.linspace(0.0, 1.0, 32)
    other = compile_schedule(schedule("1f1b", 1, 4))

    def scale_after(steps: int) -> float:
        for _ in range(steps):
            pipeline.step(x.view(8, 4), target=x.view(8, 4), program=other)
        found: float = pipeline.state_dict()["loss_scale"]["scale"]
        return found

    assert scale_after(2) == 32.0
    pipeline.load_state_dict({"loss_scale": {"scale": 2.0, "good": 0}})
    assert scale_after(1) == 4.0


def of_two(family: str = "1f1b", **options: Any) -> Pipeline:
    """A small GPT's pipeline, on a rank that is a thread."""
    return Pipeline.from_source(program_of(family, RANKS), SmallGPT(), transport=own(), **options)


def losses_of(pipeline: Pipeline, first: int) -> list[float]:
    """The mean loss of each step, starting with step ``first``."""
    history = []
    for step in range(first, first + STEPS):
        rows = pipeline.gather(stepped(pipeline, SmallGPT(), step))
        history.append(sum(loss for row in rows for loss in row) / MICROBATCHES)
    return history


def saved() -> tuple[State, list[float]]:
    """A rank's state after some steps, and the losses of further steps."""
    pipeline = of_two("chimera")
    losses_of(pipeline, 0)
    state = copy.deepcopy(pipeline.state_dict())
    return state, losses_of(pipeline, STEPS)


def whole() -> nn.Module:
    """The model in one process, with its own parameter names."""
    embedding, *blocks, head = (make() for _, make in SmallGPT().named_layers())
    head.symbols.weight = embedding.symbols.weight
    return nn.Sequential(OrderedDict(embedding=embedding, blocks=nn.Sequential(*blocks), head=head))


def test_torchs_own_functions_load_what_a_pipeline_saved_under_torchs_own_keys() -> None:
    rows = on_threads(saved, RANKS)
    state = {part: rows[0][0][part] | rows[1][0][part] for part in ("model", "optimizer")}
    model, source = whole(), SmallGPT()
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    optimizer = source.optimizer(model.parameters())
    flat = get_optimizer_state_dict(model, optimizer, options=options)
    assert state["model"].keys() == get_model_state_dict(model).keys()
    assert state["optimizer"].keys() == flat.keys()
    model.load_state_dict(state["model"])
    set_optimizer_state_dict(model, optimizer, state["optimizer"], options=options)
    for step, wanted in enumerate(rows[0][1], STEPS):
        optimizer.zero_grad()
        pairs = zip(*source.batch(step, MICROBATCHES), strict=True)
        loss = torch.stack([source.loss(model(x), y) for x, y in pairs]).mean()
        torch.autograd.backward(loss)
        optimizer.step()
        assert loss.item() == pytest.approx(wanted, rel=1e-12)


def changed(section: str, end: str, value: object = None) -> Callable[[State], Any]:
    """Changes or deletes the value of the first key of a state that ends with ``end``."""

    def change(state: State) -> State:
        key = next(key for key in state[section] if key.endswith(end))
        kept = {name: x for name, x in state[section].items() if name != key}
        return {**state, section: kept if value is None else kept | {key: value}}

    return change


FIRST = "blocks.2.norm_attention.weight"  # a parameter of the last rank
WRONG: list[tuple[Callable[[State], Any], str]] = [
    (changed("model", "widen.weight"), "model.blocks.2.widen.weight: missing"),
    (changed("optimizer", ".exp_avg"), f"optimizer.state.{FIRST}.exp_avg: missing"),
    (
        lambda state: {**state, "model": state["model"] | {"other.weight": torch.zeros(1)}},
        "model.other.weight: expected only names of the model's parameters and buffers",
    ),
    (
        changed("model", "embedding.symbols.weight", torch.zeros(3)),
        "model.embedding.symbols.weight: expected a tensor of shape [256, 16], got a tensor of "
        "shape [3]",
    ),
    (changed("loss_scale", "scale", -1.0), "loss_scale: scale: expected more than 0, got -1.0"),
    (lambda _: {"models": {}}, "expected model, optimizer, loss_scale, got models"),
]


def refused(change: Callable[[State], Any]) -> str:
    """The message of all ranks for a state that is invalid on the last one; none loads any of
    it."""
    pipeline = of_two(loss_scale=LossScale(8.0))
    stepped(pipeline, SmallGPT())
    state = pipeline.state_dict()
    before, (name, value) = copy.deepcopy(state["model"]), next(iter(state["model"].items()))
    other = state | {"model": state["model"] | {name: value * 0}}
    with pytest.raises(InputError) as caught:
        pipeline.load_state_dict(change(other) if pipeline.rank == RANKS - 1 else other)
    assert_has(pipeline, before)
    return str(caught.value)


@pytest.mark.parametrize(("change", "line"), WRONG)
def test_what_is_wrong_on_one_rank_is_one_line_on_all_and_changes_nothing(
    change: Callable[[State], Any], line: str
) -> None:
    assert on_threads(partial(refused, change), RANKS) == dict.fromkeys(
        range(RANKS), f"rank 1: state_dict: {line}"
    )


def raising(stage: int, name: str) -> str:
    if stage == 1:
        raise KeyError(name)
    return f"{stage}.{name}"


def of_last(parameters: Any) -> torch.optim.Optimizer:
    """An optimizer without a state by names, only on the last rank."""
    between = own()
    assert between is not None
    kind = torch.optim.LBFGS if between.rank == RANKS - 1 else torch.optim.SGD
    return kind(parameters)


def unsaved(**options: Any) -> str:
    """The message of a rank, which is the same every time."""
    pipeline = of_two(**options)
    said = []
    for _ in range(2):
        with pytest.raises(InputError) as caught:
            pipeline.state_dict()
        said.append(str(caught.value))
    assert said[0] == said[1]
    return said[0]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            {"names": lambda s, n: n},
            r"^names: stages 0 and 1 both have 1.norm_attention.weight: .*option names",
        ),
        ({"names": raising}, "names: expected a name of the model for stage 1, .*: KeyError: "),
        ({"optimizer": of_last}, "got LBFGS: TypeError: .*closure"),
    ],
)
def test_what_cannot_be_saved_is_one_line_on_all_ranks(options: dict[str, Any], line: str) -> None:
    said = on_threads(partial(unsaved, **options), RANKS)
    assert said[0] == said[1]
    assert re.search(line, said[0])
    assert "\n" not in said[0]
