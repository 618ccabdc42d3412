"""Random models with a heavy embedding and head, on random pipelines.

No instance was selected by its results.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from pipeloom import Layer, LayerKind, Objective, Placement, Profile, StageProfile
from pipeloom.ir import LayeredProfile

SEEDS = range(36)
INTERLEAVED = partial(Placement.interleaved, chunks=2)
PLACEMENTS = (Placement.linear, Placement.linear, Placement.v, INTERLEAVED)
"""The placements from which an instance draws one."""


@dataclass(frozen=True)
class Instance:
    """One model on one pipeline. ``limit`` describes the memory limit."""

    profile: LayeredProfile
    microbatches: int
    placement: Placement
    objective: Objective
    limit: str

    @property
    def blocks(self) -> int:
        return sum(s.layers[0].kind is LayerKind.BLOCK for s in self.profile.layers)


def instance(seed: int) -> Instance:
    """The random instance of a seed.

    Times are in units of the F of a block, activation memory in units of the M_B of a block, and
    weights in units of the weights of a block.
    """
    rng = np.random.default_rng(seed)
    ranks = int(rng.choice((4, 8)))
    blocks = int(rng.choice((16, 24, 32) if ranks == 4 else (24, 32, 48)))
    layers = _layers(rng, blocks)
    placement = PLACEMENTS[int(rng.choice(4))](ranks)
    cluster = Profile((), ranks, t_comm=float(rng.uniform(0.02, 0.3)), name=f"seed {seed}")
    # with equal layers and an even cut, 1F1B holds P microbatches of 1 / P of the model
    share, weights = float(rng.choice((0.6, 0.8, 1.0, 1.25))), bool(rng.integers(2))
    activations = share * sum(layer.m_b for layer in layers)
    if weights:
        kept = sum(4 * (layer.weight_bytes or 0.0) for layer in layers) / ranks
        cluster = replace(cluster, device_memory=(activations + kept,) * ranks)
    else:
        cluster = replace(cluster, memory_limit=(activations,) * ranks)
    return Instance(
        LayeredProfile(layers, (False,) * len(layers), cluster),
        ranks * int(rng.choice((1, 2, 3))),
        placement,
        list(Objective)[int(rng.integers(2))],
        f"{share:g}" + (" with weights" if weights else ""),
    )


def _layers(rng: np.random.Generator, blocks: int) -> tuple[StageProfile, ...]:
    """An embedding, blocks that differ by up to 5 %, a head, and a loss.

    Gradients are as large as weights, and the optimizer has two states per weight.
    """
    t_b, t_w, m_w = rng.uniform(1.0, 1.3), rng.uniform(0.7, 1.0), rng.uniform(0.3, 0.9)
    head, vocabulary = rng.uniform(1.5, 5.0), rng.uniform(3.0, 8.0)
    logits = rng.uniform(0.5, 3.0)

    def layer(name: str, kind: LayerKind, costs: tuple[float, ...], weight: float) -> StageProfile:
        t_f, t_b, t_w, m_b, m_w = map(float, costs)
        made = StageProfile(t_f, t_b, t_w, m_b, m_w, layers=(Layer(name, kind, (name,)),))
        return replace(made, weight_bytes=weight, grad_bytes=weight, optimizer_bytes=2 * weight)

    embedding = (rng.uniform(0.1, 0.5), 0.0, rng.uniform(0.5, 2.0), rng.uniform(0.1, 0.5), 0.1)
    found = [layer("tok_embeddings", LayerKind.EMBEDDING, embedding, vocabulary)]
    for number in range(blocks):
        near = rng.uniform(0.95, 1.05)
        costs = (near, near * t_b, near * t_w, 1.0, m_w)
        found.append(layer(f"layers.{number}", LayerKind.BLOCK, costs, 1.0))
    costs = (head, head, head, logits, min(logits, 0.2))
    found.append(layer("output", LayerKind.HEAD, costs, vocabulary))
    costs = (rng.uniform(0.2, 1.0), rng.uniform(0.2, 1.0), 0.0, logits, 0.0)
    return (*found, layer("loss", LayerKind.LOSS, costs, 0.0))
