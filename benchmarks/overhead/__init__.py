"""The overhead of the runtime: its steps compared with those of torch's runtime and of a bare loop.

Also the cost of a global gradient norm, and the amount of code that a step runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from statistics import median

from .. import Case, Claim, Column, Row, Rows, Size, Table, of_part, plain

ROOMS = ("runtime", "compiler")
MODULES, GRAPHS, NORM, CORE = "modules", "graphs", "norm", "core"
LENGTHS = (5.0, 20.0, 0.0)
FAMILIES = ("1f1b", "interleaved-1f1b:2", "zb-h1", "zb-v")
STAGES_AS = {MODULES: "eager", GRAPHS: "aten"}
ABOVE_BARE = {5.0: (0.007, 0.012), 20.0: (0.003, 0.006)}  # by ms of a stage: median, largest
WITHOUT_COMPUTE = 1.25  # largest step / the bare loop's step
RUNTIMES = ("ours", "torch", "bare")
MOST_CODE = {"functions": 15, "files_before": 6, "lines": 1100}
WAYS = {"ahead": "post-validation", "waiting": "all wait", "clipped": "post-validation, all clip"}


def cases(size: Size) -> Iterator[Case]:
    for part in STAGES_AS:
        for ms, family, count in product(LENGTHS, FAMILIES, (16, 32)):
            if size != "small" or (part, ms, family, count) == (MODULES, 5.0, "zb-h1", 16):
                given = {"milliseconds": ms, "family": family, "microbatches": count}
                yield Case(part, f"{family} M={count} {ms:g} ms", given, timed=True)
    for family in ("1f1b", "zb-h1", "zb-h2")[2 if size == "small" else 0 :]:
        given = {"family": family, "microbatches": 12, "milliseconds": 10.0}
        yield Case(NORM, f"{family} M=12", given, timed=True)
    yield Case(CORE, "zb-h1 on two ranks")


def measure(case: Case) -> Row:
    if case.part == CORE:
        from .core import measured

        return measured()
    from . import norms, steps

    if case.part == NORM:
        return norms.measured(steps.Asked(**case.given))
    return steps.measured(steps.Asked(**case.given), STAGES_AS[case.part])  # type: ignore[arg-type]


def judge(rows: Rows) -> Iterator[Claim]:
    for part in STAGES_AS:
        if own := of_part(rows, part):
            yield from _steps(part, own)
    if own := of_part(rows, NORM):
        worst = max(row["step_ms"]["ahead"] / row["step_ms"]["waiting"] for row in own)
        words = (
            "With a global gradient norm that clips no step, a step with post-validation takes at "
            f"most {worst:.3f} of a step in which all ranks wait for the norm."
        )
        yield Claim(NORM, words, worst <= 1)
    for row in of_part(rows, CORE):
        words = (
            f"{row['functions']} functions in {row['files_before']} files run before the first "
            f"instruction of a step; the step uses {row['files']} files of {row['lines']:,} code "
            "lines. The targets are {functions} functions, {files_before} files, {lines} lines."
        ).format_map(MOST_CODE)
        yield Claim(CORE, words, all(row[key] <= most for key, most in MOST_CODE.items()))


def _steps(part: str, rows: Rows) -> Iterator[Claim]:
    """Yield claims about the steps in ``rows``, relative to the ideal, the bare loop and torch."""
    for ms, (usual, most) in ABOVE_BARE.items():
        above = [
            (row["ours_ms"] - row["bare_ms"]) / row["ideal_ms"]
            for row in rows
            if row["stage_ms"] == ms and "bare_ms" in row
        ]
        if above:
            words = (
                f"Stages of {ms:g} ms as {part}: steps take {median(above):.1%} of the ideal longer"
                f" than in the bare loop in the median, and at most {max(above):.1%}; the targets "
                f"are {usual:.1%} and {most:.1%}."
            )
            yield Claim(part, words, median(above) <= usual and max(above) <= most)
    longer = [row for row in rows if row["stage_ms"]]
    below = sum(row["ours_ms"] < row["torch_ms"] for row in longer)
    if longer:
        words = f"Stages as {part}: {below} of {len(longer)} steps are shorter than torch's."
        yield Claim(part, words, below == len(longer))
    short = [row for row in rows if not row["stage_ms"] and "bare_ms" in row]
    if short:
        bare, torch = (
            [row["ours_ms"] / row[f"{other}_ms"] for row in short] for other in ("bare", "torch")
        )
        words = (
            f"Stages as {part}, without compute: steps take {min(bare):.2f} to {max(bare):.2f} "
            f"times as long as in the bare loop, and {min(torch):.2f} to {max(torch):.2f} times as "
            f"long as torch's; the target is at most {WITHOUT_COMPUTE} times the bare loop."
        )
        yield Claim(part, words, max(bare) <= WITHOUT_COMPUTE)


def _of_ideal(name: str) -> Column:
    def cell(row: Row) -> str | None:
        taken = row.get(f"{name}_ms")
        if taken is None:
            return None
        if row["ideal_ms"]:
            return f"{taken:.1f} ms, {taken / row['ideal_ms']:.3f}"
        return f"{taken / row['ops_a_rank']:.3f} ms per op"

    return Column(f"{name}, / ideal", cell)


def _norm(way: str) -> Callable[[Row], float]:
    return lambda row: float(row["step_ms"][way] / row["step_ms"]["none"])


_STEPS = Table(
    *plain({"stage ms": "stage_ms"}, "g"),
    *plain({"schedule": "family", "M": "microbatches"}),
    *plain({"ideal ms": "ideal_ms"}, ".1f"),
    *map(_of_ideal, RUNTIMES),
)
columns = {
    MODULES: _STEPS,
    GRAPHS: _STEPS,
    NORM: Table(
        *plain({"schedule": "case"}),
        *plain({"planned ms": "planned_ms"}, ".1f"),
        Column("no norm, ms", lambda row: row["step_ms"]["none"], ".1f"),
        *(Column(words, _norm(way), ".3f") for way, words in WAYS.items()),
    ),
    CORE: Table(*plain({"schedule": "case"}), *plain("functions files_before files lines", "d")),
}
