"""Sweeps the memory limit: the best schedule for each, and a picture of limit against bubble rate.

Writes schedule-LIMIT.json for each feasible limit, results.json, results.csv and frontier.svg.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeloom.ir.errors import InfeasibleError, InputError
from pipeloom.ir.units import counted
from pipeloom.report.text_table import table

from ..arguments import (
    Limit,
    add_instance,
    add_partition,
    add_passing,
    add_profile,
    add_solver,
    example,
    limits,
)
from ..output import print_json
from .compare import compare_families, load_profiles, solve

if TYPE_CHECKING:
    from pipeloom.ir.model.problem import Problem
    from pipeloom.ir.model.profile import Profile
    from pipeloom.ir.model.schedule import Schedule
    from pipeloom.planner.partition.fixed_cut import Cuts
    from pipeloom.planner.problem_setup import ProfileSource

COLUMNS = (
    "memory_limit", "status", "bubble_rate", "lower_bound_rate", "period", "makespan",
    "lower_bound", "gap", "peak_memory", "solve_seconds", "smallest_memory_limit",
    "smallest_device_memory", "file",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_profile(parser)
    add_instance(parser)
    add_passing(parser)
    parser.add_argument(
        "--memory-limits",
        metavar="A,B,...",
        type=limits,
        required=True,
        help="activation memory of each rank, in the profile's unit (20G or 16GiB where that is "
        "bytes); none is one too",
    )
    add_solver(parser, time_limit=30.0, what="each limit")
    add_partition(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        required=True,
        help="folder for the results; made if absent",
    )
    example(parser, "pipeloom sweep profile.json -m 24 --memory-limits 8,10,12,14,16 -o sweep/")


def run(args: argparse.Namespace) -> int:
    folder = _folder(args.output)
    source, profile, profile_of, cuts = load_profiles(args)
    results, best = _sweep(args, source, folder, cuts)
    families = compare_families(args, profile_of, float("inf"))
    _write(args, profile, folder, results, families, best=best)
    if args.json:
        print_json({"output": args.output, "results": results, "families": families})
    else:
        print(
            table(
                ["memory limit", "bubble", "period", "peak memory", "status"],
                list(map(_row, results)),
            )
        )
        print(f"written to {folder / 'frontier.svg'} and beside it")
    return 0 if any(result["file"] for result in results) else 1


def _folder(path: str) -> Path:
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        raise InputError(f"--output: expected a folder or a place for one, got {path!r}") from None
    return folder


def _sweep(
    args: argparse.Namespace, source: ProfileSource, folder: Path, cuts: Cuts | None
) -> tuple[list[dict[str, Any]], Schedule | None]:
    """From small limits to large ones: a schedule that fits under one fits under the next.

    The last of them comes with the results.
    """
    from pipeloom.ir.formats import dump_schedule, write_json

    results: list[dict[str, Any]] = []
    best: Schedule | None = None
    number = len(args.memory_limits)
    each = f"{args.time_limit:g} s each (--time-limit)"
    if args.work_limit is not None:
        each = f"{args.work_limit:g} million simulated ops each (--work-limit)"
    _tell(args, f"{counted(number, 'limit')}, at most {each}")
    for i, limit in enumerate(args.memory_limits):
        label = f"limit {i + 1} of {number} ({limit.words})"
        try:
            schedule, stopped = solve(args, source, cuts, limit, label)
        except InfeasibleError as error:
            results.append(_infeasible(limit, error))
            _tell(args, f"{label}: infeasible")
            continue
        best = _better(schedule, best, limit)
        file = folder / f"schedule-{limit.words}.json"
        write_json(dump_schedule(best), str(file))
        results.append(_result(limit, best, file.name))
        if stopped:
            print("pipeloom: interrupted: larger limits are left out", file=sys.stderr)
            break
    return results, best


def _tell(args: argparse.Namespace, line: str) -> None:
    if not args.quiet:
        print(line, file=sys.stderr)


def _better(schedule: Schedule, before: Schedule | None, limit: Limit) -> Schedule:
    """``schedule``, or the one found under a smaller limit where that costs less."""
    objective = schedule.problem.objective
    if before is None or schedule.timing is None or before.timing is None:
        return schedule
    if schedule.timing.cost(objective) <= before.timing.cost(objective):
        return schedule
    if schedule.report is None or before.report is None:
        return schedule
    report = replace(schedule.report, family=before.report.family)
    return replace(before, problem=_under(limit, before.problem, schedule.problem), report=report)


def _under(limit: Limit, problem: Problem, solved: Problem) -> Problem:
    """``problem``, which another limit was for, with this one as ``solved`` has it, of another cut
    maybe."""
    if problem.profile == solved.profile:
        return solved
    from pipeloom.solver.placement.search import room

    given = problem.profile.limit_from(limit)
    return replace(problem, memory_limit=room(problem.profile, problem.placement, given))


def _infeasible(limit: Limit, error: InfeasibleError) -> dict[str, Any]:
    result: dict[str, Any] = dict.fromkeys(COLUMNS)
    return result | {
        "memory_limit": limit,
        "status": "infeasible",
        error.smallest_key: error.smallest,
    }


def _result(limit: Limit, schedule: Schedule, file: str) -> dict[str, Any]:
    from pipeloom.report.summaries import gap

    timing, report = schedule.timing, schedule.report
    assert timing is not None
    assert report is not None
    objective, bound = schedule.problem.objective, report.lower_bound
    least = 1 - timing.work / (schedule.problem.ranks * bound) if bound else None
    result: dict[str, Any] = dict.fromkeys(COLUMNS)
    return result | {
        "memory_limit": limit if limit != float("inf") else None,
        "status": report.status.value,
        "bubble_rate": timing.bubble_rate(objective),
        "lower_bound_rate": least,
        "period": timing.period,
        "makespan": timing.makespan,
        "lower_bound": bound,
        "gap": gap(schedule),
        "peak_memory": max(timing.peak_memory),
        "solve_seconds": report.solve_seconds,
        "file": file,
    }


def _write(
    args: argparse.Namespace,
    profile: Profile,
    folder: Path,
    results: list[dict[str, Any]],
    families: list[dict[str, Any]],
    *,
    best: Schedule | None,
) -> None:
    from pipeloom.ir.formats import write_json, write_text
    from pipeloom.report.frontier_svg import Frontier, FrontierPoint, frontier_svg
    from pipeloom.report.summaries import scope

    document = {
        "profile": profile.name,
        "microbatches": args.microbatches,
        "objective": args.objective,
    }
    write_json(document | {"results": results, "families": families}, str(folder / "results.json"))
    write_text(_csv(results), str(folder / "results.csv"))
    points = [
        FrontierPoint(
            r["peak_memory"] if r["memory_limit"] is None else r["memory_limit"],
            r["bubble_rate"],
            r["lower_bound_rate"],
            r["status"] == "optimal",
        )
        for r in results
        if r["file"]
    ]
    built = [
        (f["schedule"], f["peak_memory"], f[f"bubble_rate_{args.objective}"])
        for f in families
        if "peak_memory" in f
    ]
    title = (
        f"{profile.name or 'sweep'}, {counted(profile.ranks, 'rank')}, "
        f"{counted(args.microbatches, 'microbatch')}"
    )
    searched = "" if best is None else scope(best.problem)
    elsewhere = {f["schedule"] for f in families if f.get("scope", searched) != searched}
    picture = frontier_svg(Frontier(title, args.objective, points, built, searched, elsewhere))
    write_text(picture, str(folder / "frontier.svg"))


def _csv(results: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(results)
    return text.getvalue()


def _row(result: dict[str, Any]) -> list[str]:
    from pipeloom.ir.units import amount, duration, exact_amount
    from pipeloom.report.summaries import percent

    limit = result["memory_limit"]
    name = "none" if limit is None else limit.words
    if result["status"] == "infeasible":
        device = result["smallest_device_memory"]
        of = "" if device is None else " of device memory"
        needs = exact_amount(result["smallest_memory_limit"] if device is None else device)
        return [name, "-", "-", "-", f"infeasible: needs {needs}{of}"]
    gap = "" if result["status"] == "optimal" else f", gap {percent(result['gap'] or 0.0)}"
    return [
        name,
        percent(result["bubble_rate"]),
        duration(result["period"]),
        amount(result["peak_memory"]),
        result["status"] + gap,
    ]
