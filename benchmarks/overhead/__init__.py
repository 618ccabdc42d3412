"""The overhead of the runtime: its steps compared with those of torch's runtime and of a bare loop.

Also the cost of a global gradient norm, and the amount of code that a step runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

from .. import Case, Claim, Column, Row, Rows, Size, Table, of_part, plain

ROOMS = ("runtime", "compiler")
MODULES, GRAPHS, LOOP, NORM, CORE = "modules", "graphs", "plain loop", "norm", "core"
LENGTHS = (5.0, 20.0, 0.0)
FAMILIES = ("1f1b", "interleaved-1f1b:2", "zb-h1", "zb-v")
STAGES_AS = {MODULES: "eager", GRAPHS: "aten"}
AT_MOST = {5.0: 1.03, 20.0: 1.01}  # modules: largest step / ideal, by ms of a stage
ABOVE_LOOP = {5.0: 0.01, 20.0: 0.005}  # graphs: largest step / ideal minus a plain loop's
WITHOUT_COMPUTE = {MODULES: 0.25, GRAPHS: 0.2}  # largest step / torch's step
RUNTIMES = ("ours", "torch", "bare")
MOST_CODE = {"functions": 15, "files_before": 6, "lines": 1100}
WAYS = {"ahead": "post-validation", "waiting": "all wait", "clipped": "post-validation, all clip"}


def cases(size: Size) -> Iterator[Case]:
    for part in STAGES_AS:
        for ms, family, count in product(LENGTHS, FAMILIES, (16, 32)):
            if size != "small" or (part, ms, family, count) == (MODULES, 5.0, "zb-h1", 16):
                given = {"milliseconds": ms, "family": family, "microbatches": count}
                yield Case(part, f"{family} M={count} {ms:g} ms", given, timed=True)
        for ms in AT_MOST if size != "small" else ():
            yield Case(LOOP, f"{part} {ms:g} ms", {"milliseconds": ms}, timed=True)
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
    if case.part == LOOP:
        return steps.in_a_loop(**case.given)
    return steps.measured(steps.Asked(**case.given), STAGES_AS[case.part])  # type: ignore[arg-type]


def judge(rows: Rows) -> Iterator[Claim]:
    for part in STAGES_AS:
        if own := of_part(rows, part):
            yield from _steps(part, own, of_part(rows, LOOP))
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


def _steps(part: str, rows: Rows, loops: Rows) -> Iterator[Claim]:
    """Yield claims about the steps in ``rows``, relative to the ideal and to torch's steps.

    ``loops``: the rows of the plain loop; the target for graphs depends on its times.
    """
    loop = {row["case"]: row["loop_ms"] / row["ideal_ms"] for row in loops}
    for ms, most in AT_MOST.items():
        bound = most
        if part == GRAPHS:
            bound = loop.get(f"{part} {ms:g} ms", 1.0) + ABOVE_LOOP[ms]
        if own := [row["ours_ms"] / row["ideal_ms"] for row in rows if row["stage_ms"] == ms]:
            words = (
                f"Stages of {ms:g} ms as {part}: steps take {min(own):.3f} to {max(own):.3f} times "
                f"the ideal; the target is at most {bound:.3f}."
            )
            yield Claim(part, words, max(own) <= bound)
    longer = [row for row in rows if row["stage_ms"]]
    below = sum(row["ours_ms"] < row["torch_ms"] for row in longer)
    if longer:
        words = f"Stages as {part}: {below} of {len(longer)} steps are shorter than torch's."
        yield Claim(part, words, below == len(longer))
    if short := [row["ours_ms"] / row["torch_ms"] for row in rows if not row["stage_ms"]]:
        words = (
            f"Stages as {part}, without compute: steps take {min(short):.2f} to {max(short):.2f} "
            f"times as long as torch's; the target is at most {WITHOUT_COMPUTE[part]}."
        )
        yield Claim(part, words, max(short) <= WITHOUT_COMPUTE[part])


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
    LOOP: Table(
        *plain({"stages": "case"}),
        *plain({"F + B + W in a loop of plain torch, ms": "loop_ms"}, ".2f"),
        Column("/ ideal", lambda row: row["loop_ms"] / row["ideal_ms"], ".3f"),
    ),
    NORM: Table(
        *plain({"schedule": "case"}),
        *plain({"planned ms": "planned_ms"}, ".1f"),
        Column("no norm, ms", lambda row: row["step_ms"]["none"], ".1f"),
        *(Column(words, _norm(way), ".3f") for way, words in WAYS.items()),
    ),
    CORE: Table(*plain({"schedule": "case"}), *plain("functions files_before files lines", "d")),
}
