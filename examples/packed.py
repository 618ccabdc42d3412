"""A model for packed sequences: a microbatch holds several, and attention stays within each of
them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

VOCABULARY, WIDTH = 61, 128
SEQUENCES, REFERENCE = 32, 512
"""The number of sequences per batch, and the length in tokens of the longest ones. Profiles are
measured with a sequence of that length."""
ATTENTION = 0.3
"""The estimated share of attention in the time of the forward of a sequence of ``REFERENCE``
tokens."""


class Block(nn.Module):
    """A residual block whose causal attention stays within each sequence of the microbatch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out, self.mlp = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor, sequence: Tensor) -> Tensor:
        """Return a tensor like ``x``, (tokens, width). ``sequence``: (tokens,), the number of each
        token's sequence."""
        sizes = torch.unique_consecutive(sequence, return_counts=True)[1].tolist()
        parts = self.qkv(self.norm(x))[None].split(sizes, dim=1)
        each = (part.chunk(3, dim=-1) for part in parts)
        seen = [scaled_dot_product_attention(q, k, v, is_causal=True) for q, k, v in each]
        x = x + self.out(torch.cat(seen, dim=1)[0])
        return x + torch.relu(self.mlp(x))


class Stage(nn.Module):
    """Stage ``s``, 0 to ``count`` - 1, of a model of ``count`` stages.

    The first stage contains the embedding, the last one the head. All stages except the last return
    ``sequence`` in addition to their output, for the next stage.
    """

    def __init__(self, s: int, count: int, width: int = 32) -> None:
        super().__init__()
        torch.manual_seed(s)
        self.embedding = nn.Embedding(VOCABULARY, width) if s == 0 else None
        self.block = Block(width)
        self.head = nn.Linear(width, VOCABULARY) if s == count - 1 else None

    def forward(self, x: Tensor, sequence: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """``x``: tokens (tokens,) in the first stage, else vectors (tokens, width). ``sequence``:
        (tokens,), the number of each token's sequence."""
        x = x if self.embedding is None else self.embedding(x)
        x = self.block(x, sequence)
        if self.head is None:
            return x, sequence
        logits: Tensor = self.head(x)
        return logits


def summed_loss(output: Tensor, target: Tensor, *, tokens: int) -> Tensor:
    """The sum of the loss over the tokens of a microbatch, divided by the number ``tokens`` of
    tokens in the whole batch.

    With ``scale_grads=False``, gradients then do not depend on how sequences are packed into
    microbatches.
    """
    return cross_entropy(output, target, reduction="sum") / tokens


def sequence_of(number: int, length: int) -> tuple[Tensor, Tensor]:
    """A random sequence: its tokens, and for each token the next one, (length,) each. ``number`` is
    the seed."""
    generator = torch.Generator().manual_seed(number)
    tokens = torch.randint(VOCABULARY, (length + 1,), generator=generator)
    return tokens[:-1], tokens[1:]


def joined(sequences: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    """Concatenate sequences into a microbatch.

    Returns the tokens, the number of each token's sequence, and the next tokens, (tokens,) each.
    """
    tokens, targets = (torch.cat(column) for column in zip(*sequences, strict=True))
    places = [torch.full_like(x, i) for i, (x, _) in enumerate(sequences)]
    return tokens, torch.cat(places), targets


def lengths_of(step: int) -> list[int]:
    """Random lengths of the sequences of a step, log-normal like those of instruction data."""
    found = np.random.default_rng(step).lognormal(4.5, 0.9, SEQUENCES)
    return [int(length) for length in np.clip(found, 8, REFERENCE)]


def batch_of(step: int) -> dict[str, Any]:
    """The lengths of the sequences of a step, as a document for ``pipeloom.pack``."""
    return {
        "format": "pipeloom.lengths", "version": 1, "lengths": lengths_of(step),
        "reference_length": REFERENCE, "attention": ATTENTION,
    }  # fmt: skip
