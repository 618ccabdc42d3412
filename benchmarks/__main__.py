"""Measures benchmarks, compares them with the records, records them, and generates the pages.

``python -m benchmarks [NAME[/PART] ...]`` measures the cases of ``--size`` and prints their tables
and claims. The exit code is 1 if a claim is not met, and 2 if nothing can be measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, get_args

from pipeloom.planner import processes_here
from tools.environment import ROOMS, environment

from . import Benchmark, Case, Claim, Row, Rows, Size, of_part
from .recording import Record, is_current
from .table import filled, line, markdown, rendered
from .workers import ROOT, load, measured

BENCHMARKS = (
    "published", "gaps", "replay", "plans", "predict", "rivals", "slow_link", "overhead",
    "split", "port", "speed", "one_gpu",
)  # fmt: skip
PAGES = ("README.md", "docs/results.md", *(f"benchmarks/{name}/README.md" for name in BENCHMARKS))
MOST_LOAD = 0.5
"""The highest load average of the machine at which timed cases are recorded."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    options = _options(arguments)
    if options.report and not (options.names or options.record or options.resume):
        return report(check=options.check)
    worst = max(run(name, options) for name in options.names or BENCHMARKS)
    return max(worst, report(check=options.check) if options.report else 0)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME[/PART]", help=f"all by default: {', '.join(BENCHMARKS)}"
    )
    parser.add_argument(
        "--size", choices=get_args(Size), default="usual",
        help="small: at most about a minute each; large: hours",
    )  # fmt: skip
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--check", action="store_true", help="compare with what is recorded")
    how.add_argument(
        "--record", action="store_true", help="record; timed cases: on an idle machine"
    )
    how.add_argument(
        "--resume", action="store_true", help="record what is not recorded with this code"
    )
    parser.add_argument(
        "--report", action="store_true",
        help="write the pages from the records; alone it measures nothing, and with --check it "
        "only compares",
    )  # fmt: skip
    parser.add_argument(
        "--workers", type=int, default=processes_here(), metavar="N",
        help="processes side by side, for cases that are not timed",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    for name in options.names:
        if name.partition("/")[0] not in BENCHMARKS:
            parser.error(f"NAME: expected one of {', '.join(BENCHMARKS)}, got {name!r}")
    return options


def run(asked: str, options: argparse.Namespace) -> int:
    """Measure a benchmark ``NAME`` or one of its parts ``NAME/PART``, and print the results.

    Depending on ``options``, also compare them with the record or write them into it. Returns the
    exit code: 1 if a claim is not met or a figure is worse than recorded, 2 if the machine is too
    busy for timed cases, else 0.
    """
    name, _, part = asked.partition("/")
    benchmark, here, known = load(name), environment(), Record.of(name)
    cases = [case for case in benchmark.cases(options.size) if part in {"", case.part}]
    if options.resume:
        cases = [case for case in cases if not _stands(known, case, here, _rooms(benchmark))]
    writes = options.record or options.resume
    if writes and here["load"] > MOST_LOAD and any(case.timed for case in cases):
        print(f"{name}: load: expected at most {MOST_LOAD}, got {here['load']}", file=sys.stderr)
        return 2
    print(f"== {asked}: {len(cases)} cases", flush=True)
    rows, worse = [], list[str]()
    for case, row in measured(name, cases, options.workers):
        print(_line(benchmark, row), flush=True)
        rows.append(row)
        if options.check:
            worse += _compared(benchmark, case, known.row(case.part, case.name), row)
        if writes:
            known.add(row, here)
            known.arrange(list(benchmark.columns))
            known.write(name)
    shown = [r for r in known.rows if part in {"", r["part"]}] if writes else rows
    print("\n".join(_tables(benchmark, shown)))
    claims = judged(benchmark, shown)
    print("\n".join(f"{'met' if each.met else 'MISSED':6} {each.words}" for each in claims))
    if options.check:
        print("\n".join([*_age(known, benchmark, here), *worse, f"{len(worse)} differ"]))
    return int(bool(worse) or not all(each.met for each in claims))


def _rooms(benchmark: Benchmark) -> Sequence[str]:
    """The folders of the library that the benchmark measures."""
    return getattr(benchmark, "ROOMS", ROOMS)


def _stands(known: Record, case: Case, here: dict[str, Any], rooms: Sequence[str]) -> bool:
    row = known.row(case.part, case.name)
    return row is not None and "failed" not in row and is_current(known.origin(row), here, rooms)


def _line(benchmark: Benchmark, row: Row) -> str:
    table = benchmark.columns[row["part"]]
    if table.by is None:
        return " | ".join([row["part"], *line(table, row)])
    return f"{row['part']}: {row['case']} {row.get('failed', '')}"


def _tables(benchmark: Benchmark, rows: Rows) -> Iterator[str]:
    for part, table in benchmark.columns.items():
        if own := of_part(rows, part):
            yield from ["", f"### {part}", *rendered(table, own)]
    yield ""


def judged(benchmark: Benchmark, rows: Rows) -> list[Claim]:
    """The claims about ``rows`` and, for each case that failed, a claim that is not met."""
    failed = [row for row in rows if "failed" in row]
    sound = [row for row in rows if "failed" not in row]
    found = list(benchmark.judge(sound)) if sound else []
    return found + [Claim(r["part"], f"{r['case']}: {r['failed']}", met=False) for r in failed]


def _compared(benchmark: Benchmark, case: Case, before: Row | None, now: Row) -> Iterator[str]:
    """Yield a line for each figure that is worse than recorded.

    ``before``: the recorded row, or None. If the benchmark has no function ``worse``, every figure
    that differs counts as worse, or none if the case is timed.
    """
    if before is None:
        yield f"{case.part}: {case.name}: not recorded"
    if before is None or "failed" in now:
        return
    worse = getattr(benchmark, "worse", None)
    faults = worse(before, now) if worse else [] if case.timed else _different(before, now)
    yield from (f"{case.part}: {case.name}: {fault}" for fault in faults)


def _different(before: Row, now: Row) -> Iterator[str]:
    for key in now:
        if "seconds" not in key and not (key in before and alike(before[key], now[key])):
            yield f"{key}: {before.get(key)} recorded, {now[key]} now"


def alike(before: Any, now: Any) -> bool:
    """Whether two figures are equal, numbers with a relative tolerance of 1e-6.

    Dictionaries and lists are compared item by item. Keys that contain "seconds" are ignored.
    """
    if isinstance(before, dict) and isinstance(now, dict):
        keys = [key for key in {**before, **now} if "seconds" not in key]
        return all(key in before and key in now and alike(before[key], now[key]) for key in keys)
    if isinstance(before, list) and isinstance(now, list):
        return len(before) == len(now) and all(map(alike, before, now))
    if isinstance(before, float) or isinstance(now, float):
        numbers = isinstance(before, int | float) and isinstance(now, int | float)
        return numbers and abs(before - now) <= 1e-6 * max(1.0, abs(before))
    return bool(before == now)


def _age(known: Record, benchmark: Benchmark, here: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each date and commit of the record, with the number of rows and whether the
    measured code is still the same."""
    found: dict[str, Rows] = {}
    for row in known.rows:
        current = is_current(known.origin(row), here, _rooms(benchmark))
        line = f"{'with this code' if current else 'OLD CODE'}: {known.when([row])}"
        found[line] = [*found.get(line, ()), row]
    for line, rows in found.items():
        yield f"{line}: {len(rows)} rows ({', '.join(dict.fromkeys(row['part'] for row in rows))})"


def report(*, check: bool) -> int:
    """Write all pages and files that are generated from the records, and return 0.

    With ``check``, nothing is written: files that differ and recorded rows without a case are
    listed, and 1 is returned if there are any.
    """
    unknown = [line for name in BENCHMARKS for line in _without_case(name)] if check else []
    print("".join(f"{line}\n" for line in unknown), end="")
    texts = {ROOT / name: text for name, text in _files()}
    different = [p for p, text in texts.items() if not p.exists() or p.read_text("utf-8") != text]
    for path in different:
        name = path.relative_to(ROOT)
        if check:
            print(f"{name}: differs from the records; python -m benchmarks --report writes it")
        else:
            path.write_text(texts[path], encoding="utf-8")
            print(f"wrote {name}")
    return int(check and bool(different or unknown))


def _without_case(name: str) -> Iterator[str]:
    """Yield a line for each recorded row whose case no longer exists."""
    known = {(case.part, case.name) for case in load(name).cases("large")}
    for row in Record.of(name).rows:
        if (row["part"], row["case"]) not in known:
            yield f"{name}: {row['part']}: {row['case']}: recorded, and no case"


def _files() -> Iterator[tuple[str, str]]:
    known = {name: (load(name), Record.of(name)) for name in BENCHMARKS}
    claims = {name: judged(one, record.rows) for name, (one, record) in known.items()}
    keyed = {each.key: (name, each) for name in claims for each in claims[name] if each.key}

    def passage(page: str, kind: str, words: list[str]) -> list[str]:
        if kind == "rows":
            name, part = words[0], " ".join(words[1:])
            return rendered(known[name][0].columns[part], of_part(known[name][1].rows, part))
        chosen = [keyed[key] for key in words] or [(n, c) for n in claims for c in claims[n]]
        if page.startswith("benchmarks/"):
            return [f"- {_sentence(c)}" for n, c in chosen if page == f"benchmarks/{n}/README.md"]
        header = ["result", "command", "recorded"]
        cells = ([_sentence(c), _command(n, page), _when(known[n][1], c)] for n, c in chosen)
        columns = 2 if page == "README.md" else 3
        return markdown(header[:columns], (row[:columns] for row in cells))

    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        yield page, filled(text, partial(passage, page))
    for one, record in known.values():
        if drawn := getattr(one, "files", None):
            yield from drawn(record.rows).items()


def _sentence(claim: Claim) -> str:
    return claim.words if claim.met else f"**Missed:** {claim.words}"


def _command(name: str, page: str) -> str:
    at = "../benchmarks" if "/" in page else "benchmarks"
    return f"[`python -m benchmarks {name}`]({at}/{name}/README.md)"


def _when(record: Record, claim: Claim) -> str:
    return record.when(of_part(record.rows, claim.part))


if __name__ == "__main__":
    sys.exit(main())
