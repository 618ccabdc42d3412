"""Models of Hugging Face from the profile to a step, with names of the model.

That they train as one process does is in `tests/parity`."""

from __future__ import annotations

from pathlib import Path

import pytest

import pipeloom
from pipeloom import Pipeline
from pipeloom.ir import Program
from pipeloom.runtime import load_source
from tests.support.hub import on_threads, own

hugging = pytest.importorskip("transformers")

MICROBATCHES = 4
MODEL = hugging.GPT2Config(
    vocab_size=64, n_embd=16, n_layer=4, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0
)


def test_a_model_is_measured_planned_and_trained_by_its_name(tmp_path: Path) -> None:
    """In near even stages, embedding and head tied. What differs from the plan's model is told."""
    MODEL.save_pretrained(tmp_path)
    name = f"hf:{tmp_path},lr=0.01"
    found = pipeloom.measure(f"{name},micro_batch=2", ranks=2, repeats=1, warmup=0, stages=2)
    answer = pipeloom.optimize(found.document(), MICROBATCHES, placement="v", time_limit=2)
    program = pipeloom.compile(answer.schedule)
    assert not notes(program, f"{name},micro_batch=2")
    assert "as the profile's micro_batch says; these have 1" in notes(program, name)
    wider = tmp_path / "wider"
    hugging.GPT2Config(**{**MODEL.to_dict(), "n_embd": 32}).save_pretrained(wider)
    line = "the plan's times and memory are of another model"
    assert line in notes(program, f"hf:{wider},micro_batch=2")
    model = hugging.AutoModelForCausalLM.from_config(MODEL)
    names = on_threads(_names, 2, (program, name), timeout=60).values()
    assert set().union(*names) == set(model.state_dict())


def notes(program: Program, name: str) -> str:
    """What a run says of the model and its batches."""
    result = pipeloom.run(program, name, steps=1)
    assert result is not None
    told = ("micro_batch", "another model or cut")
    return "; ".join(note for note in result.notes if any(words in note for words in told))


def _names(program: Program, name: str) -> set[str]:
    pipeline = Pipeline.from_source(program, load_source(name), transport=own())
    found = set(pipeline.state_dict()["model"])
    pipeline.close()
    return found
