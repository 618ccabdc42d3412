"""Curves of throughput over GPUs: WeiPipe's weak and strong scaling, and 1F1B by its degree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

from pipeloom.planner.predict import predict as predict_step

from .. import Case, Claim, Column, Rows, Size, Table, of_part
from .. import Row as Figures
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

CURVES, STAGES = "scaling curves", "1F1B by its degree"


def cases(size: Size) -> Iterator[Case]:
    for setup, (_, _, batches) in SETUPS.items():
        for scaling in batches:
            for scheme in SCHEMES:
                given = {"setup": setup, "scaling": scaling, "scheme": scheme}
                yield Case(CURVES, f"{setup} {scaling} {scheme}", given)
    for stages in DEGREES:
        yield Case(STAGES, str(stages), {"stages": stages})


def measure(case: Case) -> Figures:
    return _degree(**case.given) if case.part == STAGES else _curve(**case.given)


def _curve(setup: str, scaling: str, scheme: str) -> Figures:
    """Tokens a second and GPU by GPUs, None where it does not fit."""
    gpus, layers, batches = SETUPS[setup]
    grown = {n: n // gpus[0] if scaling == "weak" else 1 for n in gpus}
    tokens = {n: _tokens(scheme, n, layers, batches[scaling] * grown[n]) for n in gpus}
    return {"setup": setup, "scaling": scaling, "scheme": scheme, "tokens": tokens}


def _tokens(scheme: str, gpus: int, layers: int, batch: int) -> float | None:
    given = replace(BASE, rounds=batch // SEQUENCES // gpus, layers_on_8=layers)
    row = Row("nvlink_ethernet", gpus, layers, HIDDEN, SEQUENCE, SEQUENCES, "", {}, {})
    found = predict(row, scheme, given)
    return found.throughput if found.fits else None


def _degree(stages: int) -> Figures:
    """1F1B on one GPU a stage, the batch as it is: tokens a second and GPU, and those of one stage
    less the bubble of equal ones, (P-1) / (M+P-1)."""
    ideal = _one_gpu_each(1) * BATCH / (BATCH + stages - 1)
    return {"stages": stages, "tokens": _one_gpu_each(stages), "equal_stages": ideal}


def _one_gpu_each(stages: int) -> float:
    run: dict[str, Any] = ONE_MODEL | {"gpus": stages, "pp": stages, "global_batch": BATCH}
    return float(predict_step("llama-3-8b", **run).tokens_per_s_per_gpu)


def judge(rows: Rows) -> Iterator[Claim]:
    wrong = list(faults(of_part(rows, CURVES), of_part(rows, STAGES)))
    words = (
        "WeiPipe scales best of the schemes in its setups, and 1F1B loses with every stage, as "
        f"published; exceptions: {', '.join(wrong) or 'none'}."
    )
    yield Claim(CURVES, words, not wrong)


def faults(curves: Rows, degrees: Rows) -> Iterator[str]:
    """Points where the shape is not the published one: WeiPipe ahead on the most GPUs, losing least
    from the fewest on, 1F1B losing with every stage."""
    mine = {
        (row["setup"], row["scaling"]): list(row["tokens"].values())
        for row in curves
        if row["scheme"] == "WeiPipe"
    }
    for row in curves:
        own, other = mine[row["setup"], row["scaling"]], list(row["tokens"].values())
        if other[0] is None or other[-1] is None:
            yield f"{row['case']} does not fit"
        elif other[-1] > own[-1]:
            yield f"{row['case']} ahead of WeiPipe"
        elif other[-1] / other[0] > own[-1] / own[0]:
            yield f"{row['case']} loses less than WeiPipe"
    for before, after in pairwise(degrees):
        if after["tokens"] >= before["tokens"]:
            yield f"no fewer tokens a GPU in {after['stages']} stages"


def _scheme(name: str) -> Column:
    def cell(rows: list[Figures]) -> str | None:
        tokens = [row["tokens"].values() for row in rows if row["scheme"] == name]
        return " / ".join("OOM" if n is None else f"{n:.0f}" for row in tokens for n in row) or None

    return Column(name, cell)


columns = {
    CURVES: Table(
        [
            Column("setup", lambda rows: f"{rows[0]['setup']}, {rows[0]['scaling']}"),
            Column("GPUs", lambda rows: " / ".join(rows[0]["tokens"])),
            *map(_scheme, SCHEMES),
        ],
        by=lambda row: (row["setup"], row["scaling"]),
    ),
    STAGES: Table(
        [
            Column("stages", "stages"),
            Column("tokens/s/GPU", "tokens", ".0f"),
            Column("of equal stages", "equal_stages", ".0f"),
        ]
    ),
}
