"""Batches of microbatches that differ, as problems; reproducible from seed and number.

Sequence lengths have a log-normal distribution (median 600 tokens, sigma 0.9), like chat and
instruction data, or a bimodal one (three of four about 400, the others about 4,000), like such data
mixed with documents. They are at most 8,192. Each microbatch contains a fixed number of sequences.
A third of the batches has images: the encoder is part of the first stage, and all stages process
the image's tokens.

The time of a stage is that of its matrix products, linear in the tokens, and of attention,
quadratic in each sequence. Attention has no weights, so W does not include it. The unit of time is
one layer of width 4,096 on a device with 400 TFLOP/s. M_B and messages are linear in the tokens.

The last four batches are measured iterations of a run on eight ranks, with each backward split into
equal halves B and W.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pipeloom import InputError, Problem, build_family
from pipeloom.ir import parse_profile

COUNT, TRACED = 40, 4
SHAPES = ((4, 8), (4, 16), (4, 32), (8, 16), (8, 32), (8, 64), (12, 24), (16, 32), (16, 64))
"""Pairs of a number of ranks and a number of microbatches."""
SEQUENCES = (2, 4, 8)
"""Numbers of sequences per microbatch."""
ROOM = (1.0, 1.25, 1.5, 2.0)
"""Memory limits, in units of the peak memory of 1F1B or ZB-H1, whichever is larger, with the
microbatches in the given order."""
LONGEST = 8192
WIDTH = 4096
LAYERS = 4
PER_TOKEN = 24 * WIDTH**2 / 4e11
"""Milliseconds of a layer's matrix products in the forward, per token."""
PER_PAIR = 4 * WIDTH / 4e11
"""Milliseconds of attention per pair of tokens of the same sequence; half of the pairs are
masked."""
IMAGE_TOKENS, IMAGE_TIME = 576, 12.0
"""Per image: the tokens that all stages process, and the milliseconds of the encoder's forward."""
TRACE_LIMIT = 8.0

Rng = np.random.Generator
Numbers = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def batch(number: int, seed: int, trace: Path | None) -> tuple[str, Problem]:
    """The description of a batch, and the batch as a problem. ``trace``: the file for the last four
    batches.

    Raises InputError if ``trace`` is None for one of these four.
    """
    if number < COUNT - TRACED:
        return _drawn(number, seed)
    if trace is None:
        raise InputError("PIPELOOM_TRACE: expected the file of the measured run, got nothing")
    document = json.loads(trace.read_text(encoding="utf-8"))
    return _measured(*list(document["iterations"].items())[number - (COUNT - TRACED)])


def _drawn(number: int, seed: int) -> tuple[str, Problem]:
    rng = np.random.default_rng([seed, number])
    ranks, microbatches = SHAPES[number % len(SHAPES)]
    kind, images = ("log-normal", "bimodal")[number % 2], number % 3 == 0
    room = ROOM[number // len(SHAPES) % len(ROOM)]
    lengths = _lengths(kind, (microbatches, int(rng.choice(SEQUENCES))), rng)
    pictures = rng.poisson(rng.choice((0.5, 2.0)), microbatches).astype(float) if images else 0.0
    links = {"latency": 0.01, "gigabytes_per_second": 25.0}
    problem = _problem(f"{kind}-{number}", _stages(ranks, lengths, pictures), links=links)
    words = f"{kind}, {lengths.shape[1]} sequences a microbatch{', images' if images else ''}"
    return words, _limited(problem, room)


def _lengths(kind: str, shape: tuple[int, int], rng: Rng) -> Numbers:
    """The number of tokens of each sequence, shape (microbatches, sequences)."""
    if kind == "log-normal":
        drawn = rng.lognormal(np.log(600), 0.9, shape)
    else:
        middle = np.where(rng.random(shape) < 0.75, 400.0, 4000.0)
        drawn = middle * rng.lognormal(0.0, 0.3, shape)
    return np.clip(drawn.round(), 16, LONGEST)


def _stages(ranks: int, lengths: Numbers, pictures: Numbers | float) -> list[dict[str, Any]]:
    """The stages of a profile document. ``pictures``: the number of images per microbatch."""
    tokens = lengths.sum(axis=1) + IMAGE_TOKENS * pictures
    products = LAYERS * PER_TOKEN * tokens
    attention = LAYERS * PER_PAIR / 2 * (lengths**2).sum(axis=1)
    one = {
        "t_f": products + attention,
        "t_b": products + 2 * attention,
        "t_w": products,
        "m_b": tokens,
        "m_w": 0.5 * tokens,
        "activation_bytes": 2.0 * WIDTH * tokens,
    }
    more = [IMAGE_TIME * pictures, *[0.0] * (ranks - 2), 0.3 * products]
    return [
        {key: (value + extra * key.startswith("t_")).tolist() for key, value in one.items()}
        for extra in more
    ]


def _problem(name: str, stages: list[dict[str, Any]], **more: Any) -> Problem:
    """The problem for a profile with one stage per rank. ``more``: other keys of its document."""
    head = {"format": "pipeloom.profile", "version": 1, "name": name, "ranks": len(stages)}
    profile = parse_profile(head | {"stages": stages} | more, name)
    assert profile.microbatches is not None
    return Problem.linear(profile, profile.microbatches)


def _limited(problem: Problem, room: float) -> Problem:
    """The problem with a memory limit for all ranks: ``room`` times the highest peak memory of any
    rank in 1F1B or ZB-H1."""
    built = (build_family(n, problem.profile, problem.microbatches) for n in ("1f1b", "zb-h1"))
    peak = max(peak for schedule in built for peak in schedule.known_timing.peak_memory)
    return replace(problem, memory_limit=(room * peak,) * problem.ranks)


def _measured(iteration: str, ranks: list[dict[str, Any]]) -> tuple[str, Problem]:
    stages = []
    for rank in ranks:
        f, bw = (
            np.subtract(rank[f"{way}_end"], rank[f"{way}_start"]).round(3) for way in ("fwd", "bwd")
        )
        half = (bw / 2).tolist()
        stages.append({"t_f": f.tolist(), "t_b": half, "t_w": half, "m_b": 1.0, "m_w": 0.5})
    problem = _problem(f"trace-{iteration}", stages, t_comm=0.5)
    limited = replace(problem, memory_limit=(TRACE_LIMIT,) * problem.ranks)
    return f"measured iteration {iteration}", limited
