"""A model for packed sequences: attention stays within each sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

VOCABULARY, WIDTH = 61, 128
SEQUENCES, REFERENCE = 32, 512
"""Sequences per batch; tokens of the longest sequence, with which profiles are measured."""
ATTENTION = 0.3
"""Estimated share of attention in the forward of a sequence of REFERENCE tokens."""


class Block(nn.Module):
    """A residual block with causal attention within each sequence of the pack."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out, self.mlp = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor, sequence: Tensor) -> Tensor:
        """``x``: (tokens, width); ``sequence``: (tokens,), the number of each token's sequence."""
        sizes = torch.unique_consecutive(sequence, return_counts=True)[1].tolist()
        parts = self.qkv(self.norm(x))[None].split(sizes, dim=1)
        each = (part.chunk(3, dim=-1) for part in parts)
        seen = [scaled_dot_product_attention(q, k, v, is_causal=True) for q, k, v in each]
        x = x + self.out(torch.cat(seen, dim=1)[0])
        return x + torch.relu(self.mlp(x))


class Stage(nn.Module):
    """Stage ``s`` of ``count``.

    The first one contains the embedding, the last one the head. All but the last also return
    ``sequence``.
    """

    def __init__(self, s: int, count: int, width: int = 32) -> None:
        super().__init__()
        torch.manual_seed(s)
        self.embedding = nn.Embedding(VOCABULARY, width) if s == 0 else None
        self.block = Block(width)
        self.head = nn.Linear(width, VOCABULARY) if s == count - 1 else None

    def forward(self, x: Tensor, sequence: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """``x``: (tokens,) or (tokens, width); ``sequence``: number of each token's sequence."""
        x = x if self.embedding is None else self.embedding(x)
        x = self.block(x, sequence)
        if self.head is None:
            return x, sequence
        logits: Tensor = self.head(x)
        return logits


def summed_loss(output: Tensor, target: Tensor, *, tokens: int) -> Tensor:
    """The summed loss of a microbatch, divided by the number of ``tokens`` in the whole batch.

    With ``scale_grads=False``, gradients then do not depend on how the batch is packed.
    """
    return cross_entropy(output, target, reduction="sum") / tokens


def sequence_of(number: int, length: int) -> tuple[Tensor, Tensor]:
    """Tokens and next tokens of a random sequence, reproducible from its number."""
    generator = torch.Generator().manual_seed(number)
    tokens = torch.randint(VOCABULARY, (length + 1,), generator=generator)
    return tokens[:-1], tokens[1:]


def joined(sequences: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    """Concatenate sequences into a microbatch: tokens, the sequence of each token, next tokens."""
    tokens, targets = (torch.cat(column) for column in zip(*sequences, strict=True))
    places = [torch.full_like(x, i) for i, (x, _) in enumerate(sequences)]
    return tokens, torch.cat(places), targets


def lengths_of(step: int) -> list[int]:
    """Log-normal lengths, like those of instruction data."""
    found = np.random.default_rng(step).lognormal(4.5, 0.9, SEQUENCES)
    return [int(length) for length in np.clip(found, 8, REFERENCE)]


def batch_of(step: int) -> dict[str, Any]:
    """The lengths of a step's sequences as a document for ``pipeloom.pack``."""
    return {
        "format": "pipeloom.lengths", "version": 1, "lengths": lengths_of(step),
        "reference_length": REFERENCE, "attention": ATTENTION,
    }  # fmt: skip
