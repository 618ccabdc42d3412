"""B and W apart: a stage as modules and as graphs beside the whole backward and torch's split, and
whole steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .. import Case, Claim, Column, Row, Rows, Size, Table, of_part

ROOMS = ("runtime",)
APART, STAGES, STEPS = "apart", "stages", "steps"
WIDTHS = (128, 256, 512)
STAGE_NAMES = (*(f"blocks {width}" for width in (64, *WIDTHS)), "llama 256")
PAIRS, ROUNDS, STEPS_EACH = 30, 30, 10
RATIO_AT_MOST = {128: 1.15, 512: 1.05}
GRAPHS = {"aten": ("eager", 1.01), "inductor": ("compiled", 1.02)}
"""The most of (B + W) / BW, and the stages whose BW it is."""
NARROW = 128
"""Width up to which compiled stages are to be faster than eager ones, and take more steps."""
SPLIT, WHOLE = "torch's compiled zb-h1", "torch's compiled 1f1b"


def cases(size: Size) -> Iterator[Case]:
    small = size == "small"
    for width in WIDTHS[: 1 if small else None]:
        yield Case(APART, f"d = {width}", {"width": width}, timed=True)
    for name in STAGE_NAMES[: 1 if small else None]:
        yield Case(STAGES, name, {"name": name}, timed=True)
    for ranks in () if small else (2, 4):
        for width in (64, *WIDTHS):
            given = {"width": width, "ranks": ranks}
            yield Case(STEPS, f"d = {width}, {ranks} ranks", given, timed=True)


def measure(case: Case, device: str = "cpu") -> Row:
    from pipeloom.runtime import launch_ranks

    if case.part == APART:
        from .apart import apart

        width = case.given["width"]
        (found,) = launch_ranks(apart, 1, (width, PAIRS), timeout=3600).values()
        return {"width": width, "rounds": PAIRS, "runtimes": found}
    if case.part == STAGES:
        from .stages import run_ways

        (ways,) = launch_ranks(run_ways, 1, (case.name, ROUNDS, device), timeout=7200).values()
        return {"rounds": ROUNDS, "device": device, "ways": ways}
    from . import steps

    one = steps.Case(**case.given)
    return steps.summary(
        one, launch_ranks(steps.measure_steps, one.ranks, (one, STEPS_EACH), timeout=3600)
    )


def judge(rows: Rows) -> Iterator[Claim]:
    if own := of_part(rows, APART):
        yield from _apart(own)
    if own := of_part(rows, STAGES):
        for way, (whole, most) in GRAPHS.items():
            ratios = [row["ways"][way][f"of_{whole}"] for row in own]
            words = (
                f"Stages as {way}: B + W take {min(ratios):.3f} to {max(ratios):.3f} of the BW of "
                f"{whole} ones, {most} is the target."
            )
            yield Claim(STAGES, words, max(ratios) <= most)
    if own := of_part(rows, STEPS):
        yield from _steps(own)


def _apart(rows: Rows) -> Iterator[Claim]:
    ours = [row["runtimes"]["ours"] for row in rows]
    for row in rows:
        if row["width"] in RATIO_AT_MOST:
            ratio, most = row["runtimes"]["ours"]["ratio"], RATIO_AT_MOST[row["width"]]
            words = f"Modules, {row['case']}: (B + W) / BW is {ratio:.3f}, {most} is the target."
            yield Claim(APART, words, ratio <= most)
    sound = all(row["between"] <= row["before_b"] and row["extra_forwards"] == 1 for row in ours)
    words = (
        "Between B and W modules hold no more memory than before B, and each checkpointed block "
        "has one more forward."
    )
    yield Claim(APART, words, sound)


def _steps(rows: Rows) -> Iterator[Claim]:
    """Whether a ZB-H1 step of compiled stages is as fast as it should be."""
    missed = []
    for row in rows:
        own, ms = row["ms"]["inductor"], row["ms"]
        strict = row["width"] <= NARROW
        if own >= ms["eager"] if strict else own > ms["eager"]:
            missed.append(f"eager at {row['case']} ({own / ms['eager']:.3f})")
        missed += [f"{other} at {row['case']}" for other in (SPLIT, WHOLE) if own >= ms[other]]
    words = (
        f"ZB-H1 steps of stages as inductor, {len(rows)} sizes: not shorter than "
        f"{', '.join(missed) or 'none'} of: eager, {SPLIT}, {WHOLE}."
    )
    yield Claim(STEPS, words, not missed)


def _runtime(name: str) -> Column:
    def cell(row: Row) -> str:
        found = row["runtimes"][name]
        held = f"{found['before_b'] / 1e6:.1f}, {found['between'] / 1e6:.1f} MB"
        times = " + ".join(f"{found[key]:.1f}" for key in ("b_ms", "w_ms"))
        return f"{times} / {found['bw_ms']:.1f} = {found['ratio']:.3f}; {held}; " + (
            f"+{found['extra_forwards']:g}"
        )

    return Column(f"{name}: (B + W) / BW ms; held before B, to W; forwards", cell)


def _way(way: str, key: str, digits: str = ".3f") -> Callable[[Row], Any]:
    return lambda row: format(row["ways"][way][key], digits)


def _step(way: str) -> Column:
    def cell(row: Row) -> str:
        cpu = f" ({row['cpu_ms'][way]:.1f})" if "cpu_ms" in row else ""
        return f"{row['ms'][way]:.1f}{cpu}"

    return Column(f"{way} ms", cell)


columns = {
    APART: Table([Column("blocks", "case"), _runtime("ours"), _runtime("torch")]),
    STAGES: Table(
        [
            Column("stage", "case"),
            Column("eager BW ms", _way("eager", "bw")),
            Column("interception (B + W) / BW", _way("interception", "of_eager")),
            Column("aten", _way("aten", "of_eager")),
            Column("torch's split", _way("torch's split", "of_eager")),
            Column("compiled BW ms", _way("torch.compile", "bw")),
            Column("inductor (B + W) / BW", _way("inductor", "of_compiled")),
        ]
    ),
    STEPS: Table(
        [
            Column("ZB-H1 stages", "case"),
            *map(_step, ("eager", "aten", "inductor", SPLIT, WHOLE)),
        ]
    ),
}
