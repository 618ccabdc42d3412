"""GPT-2, Llama and Mixtral, unchanged: split gradients are autograd's and products wait for W."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.unit.runtime.executor.test_weight_grad_deferral import waiting

hugging = pytest.importorskip("transformers")

TOKENS, WIDTH, HEADS, LENGTH = 61, 32, 4, 12
OLD = {"n_positions": LENGTH, "n_embd": WIDTH, "n_layer": 2, "n_head": HEADS}
NEW = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS} | {
    "intermediate_size": 3 * WIDTH, "num_key_value_heads": HEADS // 2
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "GPT2": OLD | dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    "Llama": NEW,
    "Mixtral": NEW | {"num_local_experts": 4},
}


class Logits(nn.Module):
    """A Hugging Face model as a stage."""

    def __init__(self, name: str) -> None:
        super().__init__()
        config = getattr(hugging, f"{name}Config")(vocab_size=TOKENS, **MODELS[name])
        self.model = hugging.AutoModelForCausalLM.from_config(config)
        if name == "Mixtral":
            self.model.set_experts_implementation("eager")  # torch groups no products in float64

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.model(tokens, use_cache=False).logits
        return logits


def batches() -> list[Tensor]:
    return list(torch.randint(0, TOKENS, (3, 2, LENGTH)))


@pytest.mark.parametrize("name", MODELS)
def test_every_matrix_waits_for_w(name: str) -> None:
    model = Logits(name)
    names, queue = waiting(model, batches()[0])
    matrices = {key for key, parameter in model.named_parameters() if parameter.dim() >= 2}
    assert matrices <= names
    queue.run()
    assert all(parameter.grad is not None for parameter in model.parameters())
