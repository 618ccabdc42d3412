"""Profiles of seeded pipelines, as the documents that the commands read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

Document = dict[str, Any]

T_F, T_B, T_W, M_B, M_W, T_COMM = 29.718, 29.444, 19.927, 1.0, 0.432, 0.527
"""Times and memory of the 6.2B profile's stages."""
SIZES = {"activation_bytes": 2e7, "weight_bytes": 1e8, "grad_bytes": 1e8, "optimizer_bytes": 2e8}
HEAVY = {"activation_bytes": 1e8, "weight_bytes": 2e8, "grad_bytes": 2e8, "optimizer_bytes": 4e8}
HELD = {"m_b": 1e8, "m_w": 4e7}
LINKS = {"latency": 0.01, "gigabytes_per_second": 10.0}
_FAST = {"latency": 0.01, "gigabytes_per_second": 200.0}
NODES = {"latency": 0.05, "gigabytes_per_second": 2.0, "pairs": [[0, 1, _FAST], [2, 3, _FAST]]}
"""Two nodes of two ranks."""
RECOMPUTED = {"t_r": 25.0, "m_r": 0.1}
OFFLOADED = {"m_o": 0.1, "offload_bytes": 4e8}
HOST_LINK = {"gigabytes_per_second": 16.0, "latency": 0.02}


def equal(ranks: int, limit: float | None = None, **keys: Any) -> Document:
    """One entry that all stages share, as many as ranks."""
    return _document(ranks, [_stage()], limit, keys)


def unequal(
    ranks: int,
    limit: float | None = None,
    *,
    seed: int,
    times: float = 0.2,
    memory: float = 0.0,
    ends: float = 1.0,
    stages: int | None = None,
    **keys: Any,
) -> Document:
    """Stages that differ by so much, relative; the first and the last take ``ends`` times as long.

    ``stages``: how many, one a rank where it is None.
    """
    rng = np.random.default_rng(seed)
    made = [_drawn(rng, times, memory) for _ in range(stages or ranks)]
    for stage in (made[0], made[-1]):
        stage.update({key: round(stage[key] * ends, 3) for key in ("t_f", "t_b", "t_w")})
    return _document(ranks, made, limit, keys)


def with_keys(document: Document, more: Mapping[str, float]) -> Document:
    """The same profile, each of its stages or layers with some keys more."""
    kind = "stages" if "stages" in document else "layers"
    return document | {kind: [each | more for each in document[kind]]}


def matrix(ranks: int, most: float, seed: int) -> list[list[float]]:
    """A delay of its own for each ordered pair of ranks, up to ``most`` milliseconds."""
    drawn = np.random.default_rng(seed).uniform(0.0, most, (ranks, ranks))
    found: list[list[float]] = np.round(drawn, 3).tolist()
    return found


def drawn(ranks: int, seed: int, *, stages: int | None = None) -> Document:
    """Times, memory, a delay and a limit that are no round numbers."""
    rng = np.random.default_rng(1000 + seed)
    keys, made = ("t_f", "t_b", "t_w", "m_b"), []
    for _ in range(stages or ranks):
        stage = dict(zip(keys, rng.uniform(0.2, 1.0, 4).tolist(), strict=True))
        made.append(stage | {"m_w": stage["m_b"] * float(rng.uniform(0.2, 1.0))})
    held = max(stage["m_b"] for stage in made) * len(made) / ranks
    limit = float(rng.uniform(1.1, ranks)) * held
    return _document(ranks, made, limit, {"t_comm": float(rng.uniform(0.0, 0.5))})


def unlike(ranks: int, limit: float, *, stages: int, microbatches: int, seed: int) -> Document:
    """Microbatches whose sequences are .5 to 1.5 times as long as the mean, on unequal stages."""
    sizes = np.random.default_rng(seed).uniform(0.5, 1.5, microbatches)
    document = unequal(ranks, limit, seed=seed, stages=stages)
    for stage in document["stages"]:
        stage.update({key: np.round(value * sizes, 3).tolist() for key, value in stage.items()})
    return document


def layered(
    ranks: int, limit: float | None = None, *, blocks: int, seed: int, **keys: Any
) -> Document:
    """An embedding, blocks that differ by 5 %, a heavy head and a loss; times in those of a block's
    F."""
    rng = np.random.default_rng(seed)
    embedding = _layer("embedding", "embedding", 0.4, 0.1, 1.1, 0.3, 0.2)
    middle = [
        _layer(f"block.{n}", "block", *_near(rng, (1.0, 1.1, 0.9), 0.05), 1.0, 0.5)
        for n in range(blocks)
    ]
    head = _layer("head", "head", 2.5, 2.5, 2.5, 1.2, 0.3) | {"with_next": True}
    loss = _layer("loss", "loss", 0.5, 0.5, 0.0, 1.0, 0.0) | {"modules": []}
    document = _document(ranks, [], limit, {"t_comm": 0.1} | keys)
    del document["stages"]
    return document | {"layers": [embedding, *middle, head, loss]}


def _document(
    ranks: int, stages: list[Document], limit: float | None, keys: Mapping[str, Any]
) -> Document:
    head = {"format": "pipeloom.profile", "version": 1, "ranks": ranks, "stages": stages}
    delay = {} if "links" in keys else {"t_comm": T_COMM}
    return head | delay | ({} if limit is None else {"memory_limit": limit}) | dict(keys)


def _stage() -> Document:
    return {"t_f": T_F, "t_b": T_B, "t_w": T_W, "m_b": M_B, "m_w": M_W}


def _drawn(rng: np.random.Generator, times: float, memory: float) -> Document:
    t_f, t_b, t_w = _near(rng, (T_F, T_B, T_W), times)
    size = float(rng.uniform(1 - memory, 1 + memory))
    held = {"m_b": round(M_B * size, 3), "m_w": round(M_W * size, 3)}
    return {"t_f": t_f, "t_b": t_b, "t_w": t_w, **held}


def _near(rng: np.random.Generator, times: tuple[float, ...], spread: float) -> list[float]:
    drawn = np.array(times) * rng.uniform(1 - spread, 1 + spread, len(times))
    found: list[float] = np.round(drawn, 3).tolist()
    return found


def _layer(name: str, kind: str, *costs: float) -> Document:
    keys = ("t_f", "t_b", "t_w", "m_b", "m_w")
    return {"name": name, "kind": kind, **dict(zip(keys, costs, strict=True))}
