"""A Hugging Face Llama as a model source, its layers unchanged (``pip install
'pipeloom[models]'``)::

    pipeloom profile --model examples.huggingface:Llama --stages 4 -o profile.json
    pipeloom run program.json --model examples.huggingface:Llama --steps 5

What passes from stage to stage are three tensors: the hidden states, whose gradient comes back, and
the tables of the rotation, made once by the first stage, which are only handed on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

LENGTH, ROWS = 16, 2


@dataclass(frozen=True)
class Llama:
    """From a config, with random weights: nothing is downloaded."""

    layers: int = 4
    width: int = 64
    vocabulary: int = 128

    def model(self) -> Any:
        """The whole one, a ``LlamaForCausalLM``; the same wherever it is made."""
        transformers = import_module("transformers")  # installed where the example is run

        config = transformers.LlamaConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.width,
            intermediate_size=2 * self.width,
            num_hidden_layers=self.layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            attn_implementation="sdpa",  # causal without a mask
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return transformers.LlamaForCausalLM(config)

    def stages(self, count: int) -> Sequence[Callable[[], nn.Module]]:
        return [partial(self._stage, *cut) for cut in pairwise(self._ends(count))]

    def _ends(self, count: int) -> list[int]:
        return [round(self.layers * s / count) for s in range(count + 1)]

    def _stage(self, start: int, stop: int) -> nn.Module:
        # a model that fits no device is made on "meta", and only the part loaded from its
        # checkpoint
        return Part(self.model(), start, stop)

    def tied(self, count: int) -> Sequence[Sequence[tuple[int, str]]]:
        return ()  # GPT-2's head and embedding would be [[(0, "..."), (count - 1, "...")]]

    def names(self, count: int) -> Callable[[int, str], str]:
        """What the whole model calls a stage's parameters, and checkpoints with it."""
        starts = self._ends(count)

        def name_of(stage: int, name: str) -> str:
            part, *rest = name.split(".")
            if part == "layers":
                rest[0] = str(starts[stage] + int(rest[0]))
            return ".".join([*([] if part == "lm_head" else ["model"]), part, *rest])

        return name_of

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())

    def batch(self, step: int, microbatches: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        generator = torch.Generator().manual_seed(step)
        shape = (microbatches, ROWS, LENGTH + 1)
        tokens = torch.randint(0, self.vocabulary, shape, generator=generator)
        return list(tokens[..., :-1]), list(tokens[..., 1:])

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=1e-2)


class Part(nn.Module):
    """Layers ``start`` to ``stop`` of a LlamaForCausalLM, with what comes before or after them
    all."""

    def __init__(self, model: Any, start: int, stop: int) -> None:
        super().__init__()
        inner = model.model
        first, last = start == 0, stop == len(inner.layers)
        self.embed_tokens = inner.embed_tokens if first else None
        self.rotary = inner.rotary_emb if first else None
        self.layers = nn.ModuleList(inner.layers[start:stop])
        self.norm = inner.norm if last else None
        self.lm_head = model.lm_head if last else None

    def forward(self, x: Tensor, *tables: Tensor) -> Tensor | tuple[Tensor, ...]:
        if self.embed_tokens is not None:
            assert self.rotary is not None
            places = torch.arange(x.shape[1], device=x.device)[None]
            x = self.embed_tokens(x)
            tables = self.rotary(x, places)
        for layer in self.layers:
            out = layer(x, position_embeddings=tables)
            x = out if isinstance(out, Tensor) else out[0]  # a tuple before transformers 5
        if self.norm is None:
            return (x, *tables)
        assert self.lm_head is not None
        logits: Tensor = self.lm_head(self.norm(x))
        return logits
