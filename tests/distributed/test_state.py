"""State saved by one placement goes on by another, by the model's own names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from pipeloom.runtime import launch_ranks
from tests.distributed.cases.state import (
    MICROBATCHES,
    RANKS,
    STEPS,
    Model,
    Outcome,
    run_cases,
)

FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def outcomes(folder: Path) -> dict[int, Outcome]:
    return launch_ranks(run_cases, RANKS, (str(folder),), timeout=240, message_timeout=60)


class Whole(nn.Module):
    """The model in one process, with its own names."""

    def __init__(self) -> None:
        super().__init__()
        units = [make() for _, make in Model().named_layers()]
        self.embedding, self.blocks, self.head = units[0], nn.Sequential(*units[1:-1]), units[-1]
        self.head.symbols.weight = self.embedding.symbols.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.blocks(self.embedding(x)))
        return out


def train(model: nn.Module, optimizer: torch.optim.Optimizer, first: int) -> list[float]:
    history = []
    for step in range(first, first + STEPS):
        optimizer.zero_grad()
        pairs = zip(*Model().batch(step, MICROBATCHES), strict=True)
        loss = torch.stack([Model().loss(model(x), y) for x, y in pairs]).mean()
        torch.autograd.backward(loss)
        optimizer.step()
        history.append(loss.item())
    return history


def test_shards_go_on_as_a_pipeline_as_tensor_parallel_and_back(
    outcomes: dict[int, Outcome],
) -> None:
    for outcome in outcomes.values():
        whole, resumed = outcome.sharded
        assert resumed == pytest.approx(whole, rel=1e-12)


def test_one_process_loads_what_a_pipeline_saved(
    outcomes: dict[int, Outcome], folder: Path
) -> None:
    """By torch's own functions and under torch's own keys."""
    model = Whole()
    optimizer = Model().optimizer(model.parameters())
    state = {
        "pipeline": {
            "model": get_model_state_dict(model),
            "optimizer": get_optimizer_state_dict(model, optimizer, options=FLAT),
        }
    }
    dcp.load(state, checkpoint_id=folder / "chimera", no_dist=True)
    model.load_state_dict(state["pipeline"]["model"])
    set_optimizer_state_dict(model, optimizer, state["pipeline"]["optimizer"], options=FLAT)
    assert train(model, optimizer, STEPS) == pytest.approx(outcomes[0].whole[STEPS:], rel=1e-12)


def test_names_are_those_of_one_process(outcomes: dict[int, Outcome]) -> None:
    model = Whole()
    optimizer = Model().optimizer(model.parameters())
    wanted = {f"model.{name}" for name in get_model_state_dict(model)}
    flat = get_optimizer_state_dict(model, optimizer, options=FLAT)
    wanted |= {f"optimizer.{name}" for name in flat}
    assert outcomes[0].names | outcomes[1].names == wanted


def test_what_does_not_fit_is_refused_alike_on_all_ranks(outcomes: dict[int, Outcome]) -> None:
    said = outcomes[0].said
    assert outcomes[1].said == said
    assert all("\n" not in line for line in said.values())


SAID = {
    "missing": "^state_dict: model.embedding.symbols.weight: missing$",
    "unknown": "^state_dict: model.other.weight: expected names of the model's parameters and buf",
    "shape": r"^state_dict: model.embedding.symbols.weight: expected shape \[256, 16\], got \[3\]$",
    "moment": ".exp_avg: missing$",
    "section": "^state_dict: expected model, optimizer, loss_scale, got models$",
    "nothing": "^state_dict: expected model, optimizer, loss_scale, got nothing$",
    "colliding": r"^names: 1.norm_attention.weight is called so in stage 0 .*names\(count\)",
    "nameless": "^names: expected a name of the model for stage 0, 0.symbols",
    "beside": "^norm_groups: expected the process groups over which",
    "shards": r"^norm_groups: '\*.widen.weight': expected a DTensor, whose",
    "raising": "^names: no name of the model for stage 1, .*: KeyError: ",
    "closure": "got LBFGS, whose step needs a closure$",
    "no mapping": "^state_dict: model: expected a mapping of names to values, got NoneType$",
    "no state": "^state_dict: expected a mapping of sections, got NoneType$",
}


@pytest.mark.parametrize("name", SAID)
def test_what_does_not_fit_is_told(outcomes: dict[int, Outcome], name: str) -> None:
    assert re.search(SAID[name], outcomes[0].said[name])
