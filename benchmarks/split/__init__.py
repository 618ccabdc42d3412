"""B and W as separate ops, compared with BW: for single stages, and for whole steps.

Stages run as modules, as graphs, compiled, and with the split of torch.distributed.pipelining.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .. import Case, Claim, Column, Row, Rows, Size, Table, of_part

ROOMS = ("runtime",)
STAGES, STEPS = "stages", "steps"
WIDTHS = (128, 256, 512)
STAGE_NAMES = (*(f"blocks {width}" for width in (64, *WIDTHS)), "llama 256")
ROUNDS, STEPS_EACH = 30, 10
GRAPHS = {"aten": ("eager", 1.01), "inductor": ("compiled", 1.02)}
"""For each kind of graph: the kind of stages that provides the BW for comparison, and the largest
(B + W) / BW allowed."""
NARROW = 128
"""Up to this width, steps of compiled stages must be shorter than those of eager ones, and more
steps are run."""
SPLIT, WHOLE = "torch's compiled zb-h1", "torch's compiled 1f1b"


def cases(size: Size) -> Iterator[Case]:
    small = size == "small"
    for name in STAGE_NAMES[: 1 if small else None]:
        yield Case(STAGES, name, {"name": name}, timed=True)
    for ranks in () if small else (2, 4):
        for width in (64, *WIDTHS):
            given = {"width": width, "ranks": ranks}
            yield Case(STEPS, f"d = {width}, {ranks} ranks", given, timed=True)


def measure(case: Case, device: str = "cpu") -> Row:
    if case.part == STEPS:
        from .steps import measured

        return measured(**case.given, least=STEPS_EACH)
    from pipeloom.runtime import launch_ranks

    from .stages import run_ways

    (ways,) = launch_ranks(run_ways, 1, (case.name, ROUNDS, device), timeout=7200).values()
    return {"rounds": ROUNDS, "device": device, "ways": ways}


def judge(rows: Rows) -> Iterator[Claim]:
    if own := of_part(rows, STAGES):
        for way, (whole, most) in GRAPHS.items():
            ratios = [row["ways"][way][f"of_{whole}"] for row in own]
            words = (
                f"Stages as {way}: B + W take {min(ratios):.3f} to {max(ratios):.3f} times as long "
                f"as the BW of {whole} stages; the target is at most {most}."
            )
            yield Claim(STAGES, words, max(ratios) <= most)
        ways = [way for row in own for way in row["ways"].values() if "between" in way]
        words = "Between B and W a stage holds no more memory than before B."
        yield Claim(STAGES, words, all(way["between"] <= way["before_b"] for way in ways))
    if own := of_part(rows, STEPS):
        yield from _steps(own)


def _steps(rows: Rows) -> Iterator[Claim]:
    """Yield the claim that ZB-H1 steps of compiled stages are short enough."""
    missed = []
    for row in rows:
        own, ms = row["ms"]["inductor"], row["ms"]
        strict = row["width"] <= NARROW
        if own >= ms["eager"] if strict else own > ms["eager"]:
            missed.append(f"eager at {row['case']} ({own / ms['eager']:.3f})")
        missed += [f"{other} at {row['case']}" for other in (SPLIT, WHOLE) if own >= ms[other]]
    words = (
        f"ZB-H1 steps of stages as inductor are shorter than eager, {SPLIT} and {WHOLE} steps in "
        f"{len(rows)} sizes; exceptions: {', '.join(missed) or 'none'}."
    )
    yield Claim(STEPS, words, not missed)


def _way(way: str, key: str, digits: str = ".3f") -> Callable[[Row], Any]:
    return lambda row: format(row["ways"][way][key], digits)


def _step(way: str) -> Column:
    def cell(row: Row) -> str:
        cpu = f" ({row['cpu_ms'][way]:.1f})" if "cpu_ms" in row else ""
        return f"{row['ms'][way]:.1f}{cpu}"

    return Column(f"{way} ms", cell)


columns = {
    STAGES: Table(
        Column("stage", "case"),
        Column("eager BW ms", _way("eager", "bw")),
        Column("interception (B + W) / BW", _way("interception", "of_eager")),
        Column("aten", _way("aten", "of_eager")),
        Column("torch's split", _way("torch's split", "of_eager")),
        Column("compiled BW ms", _way("torch.compile", "bw")),
        Column("inductor (B + W) / BW", _way("inductor", "of_compiled")),
    ),
    STEPS: Table(
        Column("ZB-H1 stages", "case"), *map(_step, ("eager", "aten", "inductor", SPLIT, WHOLE))
    ),
}
