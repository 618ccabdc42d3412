"""GPT-2, Llama and Mixtral, unchanged: split gradients are autograd's and products wait for W."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from pipeloom.runtime.executor.weight_grad_deferral import Deferral, WeightQueue, run_backward
from pipeloom.runtime.measure.activation_ledger import Ledger
from tests.support.models import worst
from tests.unit.runtime.executor.test_weight_grad_deferral import gradients, run_split, waiting

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

    def __init__(self, name: str, *, checkpointed: bool = False) -> None:
        super().__init__()
        config = getattr(hugging, f"{name}Config")(vocab_size=TOKENS, **MODELS[name])
        self.model = hugging.AutoModelForCausalLM.from_config(config)
        if name == "Mixtral":
            self.model.set_experts_implementation("eager")  # torch groups no products in float64
        if checkpointed:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.model(tokens, use_cache=False).logits
        return logits


def batches() -> list[Tensor]:
    return list(torch.randint(0, TOKENS, (3, 2, LENGTH)))


def check(model: nn.Module) -> None:
    """Split gradients beside autograd's."""
    xs = batches()
    for x in xs:
        model(x).pow(2).mean().backward()
    expected = gradients(model, [])
    ledger, _ = run_split(model, xs)
    found = gradients(model, [])
    assert found.keys() == expected.keys()
    assert worst(found, expected) <= 1e-12
    assert ledger.live == 0


@pytest.mark.parametrize(
    ("name", "checkpointed"),
    [
        *((name, False) for name in MODELS),
        ("Llama", True),
        *(pytest.param(name, True, marks=pytest.mark.slow) for name in ("GPT2", "Mixtral")),
    ],
)
def test_split_gradients_are_autograds(name: str, checkpointed: bool) -> None:
    torch.manual_seed(0)
    model = Logits(name, checkpointed=checkpointed).double().train()
    check(model)


@pytest.mark.parametrize("name", MODELS)
def test_every_matrix_waits_for_w(name: str) -> None:
    model = Logits(name)
    names, queue = waiting(model, batches()[0])
    matrices = {key for key, parameter in model.named_parameters() if parameter.dim() >= 2}
    assert matrices <= names
    queue.run()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("name", ["GPT2", "Llama"])
def test_what_waits_for_w_is_about_what_f_left(name: str, checkpointed: bool) -> None:
    """Without checkpoints: those keep next to nothing for B, and W needs its inputs all the
    same."""
    model, ledger = Logits(name, checkpointed=checkpointed).train(), Ledger()
    ledger.start([model])
    mode, queue = Deferral(model.parameters()), WeightQueue(ledger)
    with mode.into(queue), ledger.watching():
        interface = get_gradient_edge(model(batches()[0]).sum())
    before = ledger.live
    with mode:
        run_backward((interface,), (torch.ones(()),))
    del interface
    assert ledger.live > 0
    assert checkpointed or ledger.live <= 1.05 * before
    queue.run()
    assert ledger.live == 0
