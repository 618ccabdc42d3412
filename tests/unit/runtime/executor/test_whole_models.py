"""GPT-2 and Llama, unchanged: split gradients are autograd's and products wait for W.

The models are Hugging Face's where ``transformers`` is installed (``pip install -e '.[models]'``;
it brings some twenty packages, so that continuous integration goes without), and always two written
the same way: GPT-2's transposed products and tied head, Llama's rotation, gate and grouped heads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pipeloom.runtime.executor.weight_grad_deferral import Deferral, WeightQueue, run_backward
from pipeloom.runtime.measure.activation_ledger import Ledger
from tests.unit.runtime.executor.test_weight_grad_deferral import gradients, run_split, waiting

TOKENS, WIDTH, HEADS, LENGTH = 61, 32, 4, 12


class Transposed(nn.Module):
    """GPT-2's linear layer: the weight is (in, out), the product an ``addmm``."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.2 * torch.randn(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return rows.view(*x.shape[:-1], -1)


class GPT2Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.c_attn, self.c_proj = Transposed(WIDTH, 3 * WIDTH), Transposed(WIDTH, WIDTH)
        self.c_fc, self.c_out = Transposed(WIDTH, 4 * WIDTH), Transposed(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            t.view(*x.shape[:2], HEADS, -1).transpose(1, 2)
            for t in self.c_attn(self.ln_1(x)).split(WIDTH, dim=2)
        )
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(attended.transpose(1, 2).reshape(x.shape))
        out: Tensor = x + self.c_out(functional.gelu(self.c_fc(self.ln_2(x))))
        return out


class LlamaBlock(nn.Module):
    """Two heads of keys and values for four of queries."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(WIDTH, WIDTH // 2, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(WIDTH, 3 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm_1(x)
        q, k, v = (
            f(h).view(*x.shape[:2], -1, WIDTH // HEADS).transpose(1, 2)
            for f in (self.q, self.k, self.v)
        )
        k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        q, k = rotated(q), rotated(k)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(attended.transpose(1, 2).reshape(x.shape))
        h = self.norm_2(x)
        out: Tensor = x + self.down(functional.silu(self.gate(h)) * self.up(h))
        return out


def rotated(x: Tensor) -> Tensor:
    angles = torch.outer(torch.arange(x.shape[2]), 1e4 ** -torch.linspace(0, 1, x.shape[3] // 2))
    cos, sin = (f(torch.cat([angles, angles], -1)).to(x.dtype) for f in (torch.cos, torch.sin))
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class Written(nn.Module):
    """``block`` twice between an embedding and a head, which are one weight where ``tied``."""

    def __init__(self, block: Callable[[], nn.Module], tied: bool, checkpointed: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(2))
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        self.checkpointed = checkpointed

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        out: Tensor = self.head(x)
        return out


class Logits(nn.Module):
    """A Hugging Face model as a stage."""

    def __init__(self, model: Any, checkpointed: bool) -> None:
        super().__init__()
        self.model = model
        if checkpointed:
            model.gradient_checkpointing_enable({"use_reentrant": False})

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.model(tokens, use_cache=False).logits
        return logits


def hugging_gpt2(checkpointed: bool) -> nn.Module:
    hugging = pytest.importorskip("transformers")
    config = hugging.GPT2Config(
        vocab_size=TOKENS, n_positions=LENGTH, n_embd=WIDTH, n_layer=2, n_head=HEADS
    )
    for dropout in ("resid_pdrop", "embd_pdrop", "attn_pdrop"):
        setattr(config, dropout, 0.0)
    return Logits(hugging.GPT2LMHeadModel(config), checkpointed)


def hugging_llama(checkpointed: bool) -> nn.Module:
    hugging = pytest.importorskip("transformers")
    config = hugging.LlamaConfig(
        vocab_size=TOKENS,
        hidden_size=WIDTH,
        intermediate_size=3 * WIDTH,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS // 2,
    )
    return Logits(hugging.LlamaForCausalLM(config), checkpointed)


def hugging_mixtral(checkpointed: bool) -> nn.Module:
    hugging = pytest.importorskip("transformers")
    config = hugging.MixtralConfig(
        vocab_size=TOKENS,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS // 2,
        num_local_experts=4,
    )
    model = hugging.MixtralForCausalLM(config)
    model.set_experts_implementation("eager")  # torch's grouped products have no float64
    return Logits(model, checkpointed)


MODELS: dict[str, Callable[[bool], nn.Module]] = {
    "gpt2": lambda checkpointed: Written(GPT2Block, True, checkpointed),
    "llama": lambda checkpointed: Written(LlamaBlock, False, checkpointed),
    "hugging-gpt2": hugging_gpt2,
    "hugging-llama": hugging_llama,
    "hugging-mixtral": hugging_mixtral,
}


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
    for key, gradient in found.items():
        want = expected[key]
        assert (gradient - want).abs().max() <= 1e-12 * want.abs().max(), key
    assert ledger.live == 0


@pytest.mark.parametrize(
    ("name", "checkpointed"),
    [
        *((name, False) for name in MODELS),
        ("gpt2", True),
        ("hugging-llama", True),
        *(
            pytest.param(name, True, marks=pytest.mark.slow)
            for name in ("llama", "hugging-gpt2", "hugging-mixtral")
        ),
    ],
)
def test_split_gradients_are_autograds(name: str, checkpointed: bool) -> None:
    torch.manual_seed(0)
    model = MODELS[name](checkpointed).double().train()
    check(model)


@pytest.mark.parametrize("name", MODELS)
def test_every_matrix_waits_for_w(name: str) -> None:
    model = MODELS[name](False)
    names, queue = waiting(model, batches()[0])
    matrices = {key for key, parameter in model.named_parameters() if parameter.dim() >= 2}
    assert matrices <= names
    queue.run()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_what_waits_for_w_is_about_what_f_left(name: str, checkpointed: bool) -> None:
    """Without checkpoints: those keep next to nothing for B, and W needs its inputs all the
    same."""
    model, ledger = MODELS[name](checkpointed), Ledger()
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
