"""Models of Hugging Face from the profile to the last step: losses of one process, names of the
model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pipeloom
from pipeloom import HuggingFace, Pipeline
from pipeloom.ir import Program
from pipeloom.runtime import load_source
from tests.support.hub import on_threads, own

hugging = pytest.importorskip("transformers")

MICROBATCHES, STEPS = 4, 3
MODELS = {
    "gpt2": hugging.GPT2Config(
        vocab_size=64, n_embd=16, n_layer=4, n_head=2, n_positions=16, bos_token_id=0,
        eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "pieces", "ranks", "placement"),
    [
        ("gpt2", {"stages": 2}, 2, "v"),
    ],
)
def test_a_model_trains_as_in_one_process(
    kind: str, pieces: Any, ranks: int, placement: str, tmp_path: Path
) -> None:
    """In near even stages, embedding and head tied."""
    MODELS[kind].save_pretrained(tmp_path)
    name = f"hf:{tmp_path},micro_batch=2,lr=0.01"
    found = pipeloom.measure(name, ranks=ranks, repeats=1, warmup=0, **pieces)
    answer = pipeloom.optimize(found.document(), MICROBATCHES, placement=placement, time_limit=2)
    program = pipeloom.compile(answer.schedule)
    result = pipeloom.run(program, name, steps=STEPS)
    source = load_source(name)
    assert isinstance(source, HuggingFace)
    model = whole(source)
    assert result is not None
    assert result.losses == pytest.approx(one_process(source, model), rel=1e-4)
    assert not any("micro_batch" in note or "another" in note for note in result.notes)
    other = pipeloom.run(program, f"{name},micro_batch=1".replace("micro_batch=2,", ""))
    assert other is not None
    assert "as the profile's micro_batch says; these have 1" in other.notes[0]
    wider = tmp_path / "wider"
    hugging.GPT2Config(**{**MODELS[kind].to_dict(), "n_embd": 32}).save_pretrained(wider)
    unlike = pipeloom.run(program, f"hf:{wider},micro_batch=2")
    assert unlike is not None
    assert "the plan's times and memory are of another model" in unlike.notes[0]
    names = on_threads(_names, ranks, (program, name), timeout=60).values()
    assert set().union(*names) == set(model.state_dict())


def _names(program: Program, name: str) -> set[str]:
    pipeline = Pipeline.from_source(program, load_source(name), transport=own())
    found = set(pipeline.state_dict()["model"])
    pipeline.close()
    return found


def whole(source: HuggingFace) -> Any:
    """The model as the library makes it; its head is tied to its embedding where that says so."""
    model = hugging.AutoModelForCausalLM.from_config(
        hugging.AutoConfig.from_pretrained(source.path)
    )
    state: dict[str, Tensor] = {}
    for _, make in reversed(source.named_layers()):  # of what is tied, the first layer's
        state |= make().state_dict()
    for group in source.skeleton.ties:
        state |= dict.fromkeys(group, state[group[0]])
    model.load_state_dict(state)
    return model


def one_process(source: HuggingFace, model: Any) -> list[float]:
    optimizer = source.optimizer(model.parameters())
    history = []
    for step in range(STEPS):
        inputs, _ = source.batch(step, MICROBATCHES)
        optimizer.zero_grad()
        losses = [model(input_ids=tokens, labels=tokens).loss / MICROBATCHES for tokens in inputs]
        torch.stack(losses).sum().backward()
        optimizer.step()
        history.append(sum(loss.item() for loss in losses))
    return history
