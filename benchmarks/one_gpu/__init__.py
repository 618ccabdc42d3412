"""Ranks of a GPT that share one GPU: planned and measured steps.

Without a GPU, only the tiny models of the small size are run, on a CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from .. import Case, Claim, Column, Row, Rows, Size, Table, of_part, plain
from .. import split as backward

ROOMS = ("runtime", "compiler", "planner", "solver")
GRADIENTS, PIPELINES, SPLIT = "gradients", "pipelines", "B and W apart"
FAMILIES = ("1f1b", "zb-h1", "zb-v", "weipipe-interleave")
NAMES = ("1f1b", "zb-1p", "zb-2p", "zb-v", "weipipe-interleave")
RANKS = {2: 8, 4: 12, 8: 16}
"""The number of microbatches, by the number of ranks."""
STAGES = ("blocks 512", "blocks 1024", "blocks 2048")
ALIKE = 0.01  # plans with a smaller relative difference count as equal
STEP, HOST, PEAK, GAIN, RATIO = 0.03, 0.02, 0.10, 0.9, 1.03
"""Targets for the figures.

``STEP`` and ``PEAK``: the largest deviation from 1 of measured / planned step time and peak memory.
``HOST``: the largest fraction of a step in which a rank idles although its inputs are available.
``GAIN``: the minimum fraction of the planned gain of tuning that is measured. ``RATIO``: the
largest (B + W) / BW.
"""


def cases(size: Size) -> Iterator[Case]:
    for family in FAMILIES[2:3] if size == "small" else FAMILIES:
        yield Case(GRADIENTS, family, timed=True)
    given = {"ranks": 2, "microbatches": 4, "tiny": True}
    yield Case(PIPELINES, "2 ranks, tiny", given, timed=True, fresh=True)
    if size == "large" or (size == "usual" and _has_gpu()):
        for ranks, microbatches in RANKS.items():
            given = {"ranks": ranks, "microbatches": microbatches, "tiny": False}
            yield Case(PIPELINES, f"{ranks} ranks", given, timed=True, fresh=True)
        for name in STAGES:
            yield Case(SPLIT, name, timed=True)


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def measure(case: Case) -> Row:
    from . import ranks

    device = "cuda" if _has_gpu() else "cpu"
    if case.part == GRADIENTS:
        return {"device": device, "difference": ranks.difference(case.name, device)}
    if case.part == SPLIT:
        return backward.measure(Case(backward.STAGES, case.name), "cuda")
    return ranks.measured(**case.given, names=NAMES, device=device)


def judge(rows: Rows) -> Iterator[Claim]:
    for row in of_part(rows, GRADIENTS):
        case, device, apart = row["case"], row["device"], row["difference"]
        words = f"Gradients of {case} on two ranks ({device}) match one process's to {apart:.1e}."
        yield Claim(GRADIENTS, words, apart <= 1e-10)
    own = [row for row in of_part(rows, PIPELINES) if not row["tiny"]]
    found = [(n, each) for row in own for n, each in row["schedules"].items()]
    activations = [each for name, each in found if name != "weipipe-interleave"]
    if found:
        ratios = [each["measured_ms"] / each["planned_ms"] for _, each in found]
        yield _most("Measured / planned step time", STEP, ratios)
        yield _most("Idle share of a rank", HOST, [each["host"] for each in activations], 0.0)
        yield _most("Measured / planned peak memory", PEAK, [_peak(each) for each in activations])
        if any(len(row["schedules"]) > 1 for row in own):
            words = "Of two schedules, the one planned to be faster is also measured to be faster."
            yield Claim(PIPELINES, words, all(map(_ordered, own)))
        for row in (row for row in own if "tuned_gain" in row):
            took, plan = row["tuned_gain"], row["planned_gain"]
            words = f"{row['case']}: steps planned with measured op times, within 2 P x M_B, are "
            words += f"{took:.1%} shorter than those of 1F1B ({plan:.1%} planned)."
            yield Claim(PIPELINES, words, took >= GAIN * plan)
    for row in of_part(rows, SPLIT):
        ratio = _apart(row)
        words = f"{row['case']}: (B + W) / BW is {ratio:.3f}; the target is at most {RATIO}."
        yield Claim(SPLIT, words, ratio <= RATIO)


def _most(words: str, most: float, found: list[float], middle: float = 1.0) -> Claim:
    """The claim, in ``words``, that all values in ``found`` differ from ``middle`` by at most
    ``most``."""
    text = f"{words}: {min(found):.3f} to {max(found):.3f}; the target is {middle:g} +- {most:g}."
    return Claim(PIPELINES, text, all(abs(each - middle) <= most for each in found))


def _peak(found: Row) -> float:
    """Measured / planned peak memory, on the rank for which this ratio is furthest from 1."""
    pairs = zip(found["peak"], found["planned_peak"], strict=True)
    ratios = [peak / plan for peak, plan in pairs if plan]
    return max(ratios, key=lambda ratio: abs(ratio - 1), default=1.0)


def _ordered(row: Row) -> bool:
    """Whether the schedules that are planned to be faster are also measured to be faster.

    Pairs of nearly equal plans are ignored.
    """
    plans = sorted((each["planned_ms"], each["measured_ms"]) for each in row["schedules"].values())
    pairs = ((a, b) for a, b in combinations(plans, 2) if b[0] - a[0] > ALIKE * b[0])
    return all(shorter[1] < longer[1] for shorter, longer in pairs)


def _schedule(name: str) -> Column:
    def cell(row: Row) -> str | None:
        found: dict[str, Any] | None = row["schedules"].get(name)
        if found is None:
            return None
        text = f"{found['measured_ms']:.1f} / {found['planned_ms']:.1f} ms"
        return f"{text}, host {found['host']:.1%}, peak {_peak(found):.2f}"

    return Column(name, cell)


def _apart(row: Row) -> float:
    return float(row["ways"]["interception"]["of_eager"])


columns = {
    GRADIENTS: Table(*plain({"family": "case"}), *plain("difference", ".1e")),
    PIPELINES: Table(*plain({"on one GPU": "case"}), *map(_schedule, NAMES)),
    SPLIT: Table(*plain({"stage": "case"}), Column("(B + W) / BW", _apart, ".3f")),
}
