"""How far the best schedule found is from the proven bound, by kind of problem.

``python -m benchmarks.gaps`` solves ten instances of each kind, 30 s each (45 minutes on two
cores), prints the gaps by kind and with ``--record`` writes them to ``results/gaps.json``, beside
what that has of other instances. 1 where a target is missed or a schedule is wrong. With ``--work``
the clock does not count: the same answers on a busy machine, which go to
``results/gaps-by-work.json``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from pipeloom.ir.formats.schedule_json import dump_schedule
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.solver.optimize import optimize

from ..recording import record, recorded
from .instances import KINDS, RANKS, problem_of

HERE = Path(__file__).parent
SEED, SECONDS = 17, 30.0
TARGETS = {"median": 0.01, "nine of ten": 0.03, "worst": 0.05}
Cells: TypeAlias = Sequence[dict[str, Any]]
WORSE = 1e-3
"""Relative: how much above the recorded cost is worse, as costs may depend on the clock."""


def main(arguments: list[str]) -> int:
    """Solves the instances and prints them; whole runs are recorded."""
    options = _options(arguments)
    cells = []
    for cell in _solved(options.kinds or list(KINDS), options):
        print(_line(cell), flush=True)
        cells.append(cell)
    print("\n".join(["", *table(cells)]))
    wrong = [_line(cell) for cell in cells if cell["violations"]]
    missed = list(misses(cells))
    before = _recorded(options)
    print("\n".join([*missed, *worse(cells, before["cells"]), *wrong]))
    if options.record:
        if options.work is not None:  # the clock of a busy machine says nothing
            cells = [{**cell, "seconds": None} for cell in cells]
        cells = merged(before["cells"], cells) if options.kinds or options.numbers else cells
        print("\n".join(["", *table(cells)]))
        result = {**_settings(options), "cells": cells}
        print(f"recorded in {record(HERE, _name(options), result).name}")
    return int(bool(missed or wrong))


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gaps", description=__doc__)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each instance")
    parser.add_argument(
        "--work", type=float, help="millions of simulated ops for each, in place of --seconds"
    )
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), metavar="KIND")
    parser.add_argument("--quick", action="store_true", help="4 ranks alone, 3 seconds each")
    every = range(len(RANKS))
    parser.add_argument("--numbers", type=int, nargs="+", choices=every, metavar="N")
    parser.add_argument("--record", action="store_true", help="by seconds: quiet machine")
    options = parser.parse_args(arguments)
    if options.quick:
        options.numbers, options.seconds = [0, 1], 3.0
    before = _recorded(options)
    if options.record and (options.kinds or options.numbers) and before["cells"]:
        kept = {key: before[key] for key in before if key not in {"environment", "cells"}}
        if kept != _settings(options):
            parser.error(f"--record: results/{_name(options)}.json keeps other instances by {kept}")
    return options


def _name(options: argparse.Namespace) -> str:
    return "gaps" if options.work is None else "gaps-by-work"


def _settings(options: argparse.Namespace) -> dict[str, float]:
    """The settings that all cells of a record share."""
    return {"seed": options.seed, **_limit(options)}


def _recorded(options: argparse.Namespace) -> dict[str, Any]:
    return recorded(HERE, _name(options)) or {"cells": []}


def _limit(options: argparse.Namespace) -> dict[str, float]:
    if options.work is not None:
        return {"work_limit": options.work}
    return {"time_limit": options.seconds}


def _solved(kinds: Sequence[str], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for kind in kinds:
        for number in options.numbers or range(len(RANKS)):
            yield cell(kind, number, options.seed, **_limit(options))


def cell(kind: str, number: int, seed: int, **limit: Any) -> dict[str, Any]:
    """One instance, solved within ``limit``: cost, bound and the relative gap between them."""
    problem = problem_of(kind, number, seed)
    schedule = optimize(problem, **limit)
    report, cost = schedule.known_report, schedule.known_timing.cost(problem.objective)
    assert report.solve_seconds is not None
    return {
        "kind": kind,
        "number": number,
        "ranks": problem.ranks,
        "microbatches": problem.microbatches,
        "cost": cost,
        "bound": report.known_bound,
        "bound_name": report.bound,
        "family": report.family,
        "gap": 1 - report.known_bound / cost,
        "seconds": round(report.solve_seconds, 1),
        "violations": verify_schedule(dump_schedule(schedule)),
    }


def _line(cell: dict[str, Any]) -> str:
    return (
        f"{cell['kind']} {cell['number']}: P={cell['ranks']}, cost {cell['cost']:.2f} "
        f"({cell['family']}), bound {cell['bound']:.2f} ({cell['bound_name']}), "
        f"gap {cell['gap']:.2%}, {cell['seconds']} s {' '.join(cell['violations'][:1])}"
    )


def figures(cells: Cells) -> dict[str, float]:
    """The median gap, the one that nine of ten are within, and the worst."""
    gaps = sorted(cell["gap"] for cell in cells)
    nine = gaps[int(np.ceil(0.9 * len(gaps))) - 1]
    return {"median": float(np.median(gaps)), "nine of ten": nine, "worst": gaps[-1]}


def _by_kind(cells: Cells) -> dict[str, list[dict[str, Any]]]:
    kinds = dict.fromkeys(cell["kind"] for cell in cells)
    return {kind: [cell for cell in cells if cell["kind"] == kind] for kind in kinds}


def table(cells: Cells) -> list[str]:
    """A Markdown table of the gaps by kind, and of all."""
    lines = ["| kind | instances | median | nine of ten | worst |", "| --- " * 5 + "|"]
    for kind, own in {**_by_kind(cells), "all": list(cells)}.items():
        numbers = [f"{value:.2%}" for value in figures(own).values()]
        lines.append(f"| {kind} | {len(own)} | {' | '.join(numbers)} |")
    return lines


def misses(cells: Cells) -> Iterator[str]:
    for kind, own in _by_kind(cells).items():
        for name, value in figures(own).items():
            if value > TARGETS[name]:
                yield f"{kind}: {name} {value:.2%} is above {TARGETS[name]:.0%}"


def worse(cells: Cells, before: Cells) -> Iterator[str]:
    """The instances whose schedule costs more than the one recorded before."""
    costs = {(*_instance(each), each["ranks"]): each["cost"] for each in before}
    for each in cells:
        known = costs.get((*_instance(each), each["ranks"]))
        if known is not None and each["cost"] > known * (1 + WORSE):
            yield f"{each['kind']} {each['number']}: {each['cost']:.2f}, recorded {known:.2f}"


def merged(before: Cells, cells: Cells) -> list[dict[str, Any]]:
    """The cells, and those before of other instances, in the order of the kinds."""
    found = {_instance(each): each for each in (*before, *cells)}
    return [found[each] for each in sorted(found, key=lambda at: (list(KINDS).index(at[0]), at[1]))]


def _instance(cell: dict[str, Any]) -> tuple[str, int]:
    return cell["kind"], cell["number"]
