"""A model of packed sequences: each attends to itself alone, wherever it is packed.

:class:`Packed` is the model source, which ``pipeloom tune`` packs anew for each step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

VOCABULARY, WIDTH = 61, 128
SEQUENCES, REFERENCE = 32, 512
"""Of a batch; tokens of the longest sequence, as which profiles are measured."""
ATTENTION = 0.3
"""The share of a forward that is attention, of a sequence of REFERENCE tokens: a guess."""


class Block(nn.Module):
    """A residual block with causal attention within each sequence of the pack."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out, self.mlp = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor, sequence: Tensor) -> Tensor:
        """``x``: (tokens, width); ``sequence``: (tokens,), the sequence that each token is of."""
        sizes = torch.unique_consecutive(sequence, return_counts=True)[1].tolist()
        parts = self.qkv(self.norm(x))[None].split(sizes, dim=1)
        each = (part.chunk(3, dim=-1) for part in parts)
        seen = [scaled_dot_product_attention(q, k, v, is_causal=True) for q, k, v in each]
        x = x + self.out(torch.cat(seen, dim=1)[0])
        return x + torch.relu(self.mlp(x))


class Stage(nn.Module):
    """Stage ``s`` of ``count``: the first embeds, the last predicts; all hand on who is whose."""

    def __init__(self, s: int, count: int, width: int = 32) -> None:
        super().__init__()
        torch.manual_seed(s)
        self.embedding = nn.Embedding(VOCABULARY, width) if s == 0 else None
        self.block = Block(width)
        self.head = nn.Linear(width, VOCABULARY) if s == count - 1 else None

    def forward(self, x: Tensor, sequence: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """``x``: of the first stage, alone, (1, 2, tokens): tokens and the sequence of each."""
        if sequence is None:
            x, sequence = x[0].unbind()
        x = x if self.embedding is None else self.embedding(x)
        x = self.block(x, sequence)
        if self.head is None:
            return x, sequence
        logits: Tensor = self.head(x)
        return logits


def summed_loss(output: Tensor, target: Tensor, *, tokens: int) -> Tensor:
    """The loss of a microbatch's tokens, as a share of all ``tokens`` of the batch: with
    ``scale_grads=False`` gradients are the batch's, however it is packed."""
    return cross_entropy(output, target, reduction="sum") / tokens


def sequence_of(number: int, length: int) -> tuple[Tensor, Tensor]:
    """Tokens and next tokens of a made-up sequence."""
    generator = torch.Generator().manual_seed(number)
    tokens = torch.randint(VOCABULARY, (length + 1,), generator=generator)
    return tokens[:-1], tokens[1:]


def joined(sequences: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    """One microbatch: tokens, the sequence of each, and next tokens."""
    tokens, targets = (torch.cat(column) for column in zip(*sequences, strict=True))
    places = [torch.full_like(x, i) for i, (x, _) in enumerate(sequences)]
    return tokens, torch.cat(places), targets


def lengths_of(step: int) -> list[int]:
    """Log-normal lengths, as those of instructions are."""
    found = np.random.default_rng(step).lognormal(4.5, 0.9, SEQUENCES)
    return [int(length) for length in np.clip(found, 8, REFERENCE)]


class Packed:
    """The model source: ``batch`` is of sequences of REFERENCE tokens, to be measured; batches of
    all lengths are packed."""

    mean_tokens = float(REFERENCE)

    def sizes(self, step: int) -> list[int]:
        return lengths_of(step)

    def stages(self, count: int) -> Sequence[partial[Stage]]:
        return [partial(Stage, s, count, WIDTH) for s in range(count)]

    def tied(self, count: int) -> Sequence[Sequence[tuple[int, str]]]:
        return ()

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """A microbatch's part of the loss, whose mean is the mean over the batch's tokens."""
        return cross_entropy(output, target, reduction="sum") / self.mean_tokens

    def batch(self, step: int, microbatches: int) -> tuple[list[Tensor], list[Tensor]]:
        return self._made([REFERENCE] * microbatches, [[i] for i in range(microbatches)])

    def lengths(self, step: int) -> dict[str, Any]:
        return {
            "format": "pipeloom.lengths", "version": 1, "lengths": self.sizes(step),
            "reference_length": REFERENCE, "attention": ATTENTION,
        }  # fmt: skip

    def packed(self, step: int, rows: Sequence[Sequence[int]]) -> tuple[list[Tensor], list[Tensor]]:
        return self._made(self.sizes(step), rows)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    def _made(
        self, lengths: Sequence[int], rows: Sequence[Sequence[int]]
    ) -> tuple[list[Tensor], list[Tensor]]:
        self.mean_tokens = sum(lengths) / len(rows)
        parts = [joined([sequence_of(i, lengths[i]) for i in row]) for row in rows]
        inputs = [torch.stack((tokens, sequence))[None] for tokens, sequence, _ in parts]
        return inputs, [targets for _, _, targets in parts]
