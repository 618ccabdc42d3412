"""Curves of throughput over GPUs: WeiPipe's weak and strong scaling, and 1F1B by its degree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

from pipeloom.planner.predict import predict as predict_step

from ..published.assumed import BASE
from ..published.cells import Row
from ..published.schemes import predict

SCHEMES = ("1F1B", "ZB1", "FSDP", "WeiPipe")
HIDDEN, SEQUENCE, SEQUENCES = 1024, 16384, 2
SETUPS = {
    "small": ((4, 8, 16), 16, {"weak": 64, "strong": 128}),
    "large": ((8, 16, 32), 32, {"weak": 128, "strong": 256}),
}
"""GPUs, layers, and the batch: in weak scaling that of the fewest GPUs."""
DEGREES = (1, 2, 4, 8, 16, 32)
BATCH = 64
ONE_MODEL = {"gpu": "H100", "seq": 4096, "micro_batch": 1, "recompute": "full"}

Curve = dict[str, Any]


def scaling_curves() -> Iterator[Curve]:
    """Each setup, scaling and scheme: tokens a second and GPU by GPUs, None where it does not
    fit."""
    for setup, (gpus, layers, batches) in SETUPS.items():
        for scaling, batch in batches.items():
            for scheme in SCHEMES:
                grown = {n: n // gpus[0] if scaling == "weak" else 1 for n in gpus}
                tokens = {n: _tokens(scheme, n, layers, batch * grown[n]) for n in gpus}
                yield {"setup": setup, "scaling": scaling, "scheme": scheme, "tokens": tokens}


def _tokens(scheme: str, gpus: int, layers: int, batch: int) -> float | None:
    given = replace(BASE, rounds=batch // SEQUENCES // gpus, layers_on_8=layers)
    row = Row("nvlink_ethernet", gpus, HIDDEN, SEQUENCE, SEQUENCES, layers, "", {}, {})
    found = predict(row, scheme, given)
    return found.throughput if found.fits else None


def degree_curve() -> list[dict[str, float]]:
    """1F1B on one GPU a stage, the batch as it is: tokens a second and GPU by stages, and those of
    one stage less the bubble of equal ones, (P-1) / (M+P-1)."""
    rows = list[dict[str, float]]()
    for stages in DEGREES:
        run: dict[str, Any] = ONE_MODEL | {"gpus": stages, "pp": stages, "global_batch": BATCH}
        found = predict_step("llama-3-8b", **run)
        tokens = found.tokens_per_s_per_gpu
        first = rows[0]["tokens"] if rows else tokens
        ideal = first * BATCH / (BATCH + stages - 1)
        rows.append({"stages": stages, "tokens": tokens, "equal_stages": ideal})
    return rows


def faults(curves: list[Curve], degrees: list[dict[str, float]]) -> Iterator[str]:
    """Points where the shape is not the published one: WeiPipe ahead on the most GPUs, losing least
    from the fewest on, 1F1B losing with every stage."""
    mine = {
        (curve["setup"], curve["scaling"]): curve["tokens"]
        for curve in curves
        if curve["scheme"] == "WeiPipe"
    }
    for curve in curves:
        own, other = mine[curve["setup"], curve["scaling"]], curve["tokens"]
        few, many = min(own), max(own)
        name = f"{curve['setup']}, {curve['scaling']}, {curve['scheme']}"
        if other[few] is None or other[many] is None:
            yield f"{name}: does not fit"
        elif other[many] > own[many]:
            yield f"{name}: ahead of WeiPipe on {many} GPUs"
        elif other[many] / other[few] > own[many] / own[few]:
            yield f"{name}: loses less than WeiPipe from {few} to {many} GPUs"
    for before, after in pairwise(degrees):
        if after["tokens"] >= before["tokens"]:
            yield f"1F1B: no fewer tokens a GPU in {after['stages']:g} stages than in fewer"
