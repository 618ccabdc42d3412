"""Files of weights: those that are wrong are named, and nothing is drawn instead."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pipeloom import HuggingFace
from pipeloom.ir import InputError

hugging = pytest.importorskip("transformers")

from tests.unit.runtime.models.test_huggingface import GROUPED  # noqa: E402

ENDS = ("eos_token_id", "pad_token_id", "sep_token_id")
NAME = "model.layers.1.mlp.up_proj.weight"
FILE, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    hugging.LlamaForCausalLM(hugging.LlamaConfig(**GROUPED)).save_pretrained(tmp_path)
    return tmp_path


def state_of(folder: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = pytest.importorskip("safetensors.torch").load_file(
        folder / "model.safetensors"
    )
    return found


def fault(folder: Path) -> str:
    source = HuggingFace(str(folder))
    with pytest.raises(InputError) as caught:
        block(source)
    return str(caught.value).removeprefix(f"hf:{folder}: ")


def block(source: HuggingFace) -> nn.Module:
    source.check()
    return source.named_layers()[2][1]()


def write(folder: Path, state: dict[str, Tensor]) -> None:
    pytest.importorskip("safetensors.torch").save_file(state, folder / "model.safetensors")


def test_missing_weights_are_named(folder: Path) -> None:
    state = state_of(folder)
    del state[NAME]
    write(folder, state)
    assert fault(folder) == f"expected {NAME} in its weights"
    write(folder, state | {NAME: torch.zeros(3, 5)})
    assert fault(folder) == f"{NAME}: expected shape [24, 16], got [3, 5]"


@pytest.mark.parametrize(
    ("file", "text", "line"),
    [
        (FILE, "no", f"{FILE}: expected a file of weights: "),
        (INDEX, json.dumps({"weight_map": {NAME: "2.safetensors"}}), "2.safetensors: expected a f"),
        (INDEX, "{}", f"{INDEX}: expected a weight_map: "),
    ],
)
def test_a_file_that_holds_no_weights_is_named(
    folder: Path, file: str, text: str, line: str
) -> None:
    (folder / file).write_text(text)
    assert fault(folder).startswith(line)


def test_weights_in_another_format_are_not_drawn_instead(folder: Path) -> None:
    (folder / FILE).rename(folder / "pytorch_model.bin")
    assert fault(folder) == f"expected weights in {FILE} or {INDEX}, found pytorch_model.bin"


def test_a_checkpoint_of_the_base_model_has_its_prefix_added(folder: Path) -> None:
    state = {name.removeprefix("model."): value for name, value in state_of(folder).items()}
    write(folder, state)
    found = block(HuggingFace(str(folder))).state_dict()
    assert torch.equal(found[NAME], state[NAME.removeprefix("model.")])


def test_a_model_that_does_not_draw_a_part_alone_is_refused_in_a_line(tmp_path: Path) -> None:
    heads = {"num_key_value_heads": 4, "bos_token_id": 0, "cls_token_id": 0}
    config = hugging.ModernBertDecoderConfig(**GROUPED | heads | dict.fromkeys(ENDS, 1))
    config.save_pretrained(tmp_path)
    line = fault(tmp_path)
    assert line.startswith("ModernBertDecoderForCausalLM: expected _init_weights to take a part")
    assert "AttributeError" in line
    assert "\n" not in line
