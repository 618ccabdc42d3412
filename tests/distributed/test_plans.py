"""Plans, scaled down to a small model on four ranks: each schedule trains as one process does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import pipeloom

hugging = pytest.importorskip("transformers")

RUN: dict[str, Any] = {"gpus": 4, "pp": 4, "global_batch": 8, "micro_batch": 1, "seq": 16}
PLANS: dict[str, dict[str, Any]] = {
    "chosen": {},
    "1f1b": {"schedule": "1f1b"},
    "interleaved": {"schedule": "interleaved-1f1b", "vp": 2},
    "v-half": {"schedule": "v-half"},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small Llama, with its ``config.json``."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("llama")
    hugging.LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=8,
        num_attention_heads=2, max_position_embeddings=16
    ).save_pretrained(folder)  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def losses(model: Path) -> tuple[float, ...]:
    return trained(model, PLANS["1f1b"], local=True)


def trained(model: Path, given: dict[str, Any], *, local: bool) -> tuple[float, ...]:
    found = pipeloom.plan(str(model), "H100", **RUN, **given, time_limit=2.0)
    found.write(model / "plan")
    name = f"hf:{model},seq=16,micro_batch=1,lr=0.01"
    program = pipeloom.load_program(str(model / "plan" / "program.json"))
    result = pipeloom.run(program, name, steps=2, local=local)
    assert result is not None
    return tuple(result.losses)


@pytest.mark.parametrize("name", [name for name in PLANS if name != "1f1b"])
def test_every_plan_trains_alike(model: Path, losses: tuple[float, ...], name: str) -> None:
    """``chosen`` in four Gloo processes, the others on threads; the second step's loss is that of
    the weights that the first has made."""
    own = trained(model, PLANS[name], local=name != "chosen")
    assert own == pytest.approx(losses, rel=1e-4)
