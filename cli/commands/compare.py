"""Lays all families and the optimizer side by side for one profile and memory limit."""

from __future__ import annotations

import argparse
import math
import sys
import textwrap
from typing import TYPE_CHECKING, Any

from pipeloom.ir.errors import InfeasibleError, InputError
from pipeloom.planner.placement.spec import AUTO, ONE_PLACEMENT
from pipeloom.report.text_table import WIDEST, table

from ..arguments import (
    add_instance,
    add_memory_limit,
    add_partition,
    add_passing,
    add_profile,
    add_solver,
    example,
)
from ..inputs import (
    CACHE,
    MICROBATCHES,
    OPTIMIZER_OPTIONS,
    cache_folder,
    options,
    read_profile,
    typed,
)
from ..output import print_json
from ..progress import interruptible, watched

if TYPE_CHECKING:
    from pipeloom.ir.model.profile import Profile
    from pipeloom.ir.model.schedule import Schedule, Timing
    from pipeloom.planner.partition.fixed_cut import Cuts, Profiles
    from pipeloom.planner.problem_setup import ProfileSource

HEADER = ["schedule", "period", "bubble", "makespan", "bubble", "peak memory", "status"]
OPTIMIZER = "optimize"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_profile(parser)
    add_instance(parser)
    add_passing(parser)
    add_memory_limit(parser)
    parser.add_argument(
        "--no-optimizer", action="store_true", help="families alone, which takes no time"
    )
    add_solver(parser, time_limit=20.0)
    add_partition(parser)
    example(
        parser,
        "pipeloom compare profile.json -m 24 --memory-limit 16",
        "pipeloom compare profile.json -m 24 --passing weights",
        "pipeloom compare layers.json -m 24 --max-layers 8",
        "pipeloom compare profile.json -m 24 --no-optimizer --json",
    )


def run(args: argparse.Namespace) -> int:
    source, profile, profile_of, cuts = load_profiles(args)
    results = compare_families(args, profile_of, args.memory_limit)
    if not args.no_optimizer:
        results.append(_optimized(args, source, cuts))
    if args.json:
        print_json({"profile": profile.name, "microbatches": args.microbatches, "results": results})
    else:
        print(_table(_by_cost(results, args.objective)))
        if footer := _footer(results, args.objective):
            print(f"\n{footer}")
    return 0 if any("period" in result for result in results) else 1


def _by_cost(results: list[dict[str, Any]], objective: str) -> list[dict[str, Any]]:
    """The fastest first, averaging counted; at the end those that cannot be built."""
    return sorted(results, key=lambda r: r.get("step", r.get(objective, math.inf)))


def _table(results: list[dict[str, Any]]) -> str:
    """With the steps in front, by which rows are sorted, where gradients are averaged over
    replicas."""
    from pipeloom.ir.units import duration

    rows = [_row(result) for result in results]
    if not any("step" in result for result in results):
        return table(HEADER, rows)
    steps = [duration(result["step"]) if "step" in result else "-" for result in results]
    name, *rest = HEADER
    return table(
        [name, "step", *rest],
        [[row[0], step, *row[1:]] for row, step in zip(rows, steps, strict=True)],
    )


def _footer(results: list[dict[str, Any]], objective: str) -> str:
    """What the figures are about, and which rows are about something else."""
    lines = [
        *_of_averaging(results, objective),
        *_of_the_optimizer(results),
        *_of_other_work(results),
    ]
    return "\n".join(
        textwrap.fill(line, WIDEST, subsequent_indent="  ", break_on_hyphens=False)
        for line in lines
    )


def _of_averaging(results: list[dict[str, Any]], objective: str) -> list[str]:
    if not any("step" in result for result in results):
        return []
    return [
        f"step: the {objective} until gradients are averaged over the replicas; the first row's is "
        "the shortest"
    ]


def _of_the_optimizer(results: list[dict[str, Any]]) -> list[str]:
    best = next((r for r in results if r["schedule"] == OPTIMIZER and "scope" in r), None)
    if best is None:
        return []
    others = ", ".join(
        r["schedule"] for r in results if r.get("scope", best["scope"]) != best["scope"]
    )
    cuts = "all cuts and " if best["all_cuts"] else ""
    pairs = ", or with pairs" if best["scope"].endswith("without pairs") else ""
    line = f"{OPTIMIZER}, its bound and gap: of {cuts}all schedules with {best['scope']}"
    rest = f"of another placement or passing{pairs}, which may cost less: {others}"
    return [line, rest] if others else [line]


def _of_other_work(results: list[dict[str, Any]]) -> list[str]:
    """Pairs take another time than F and B, and what is recomputed is run twice."""
    names = [
        result["schedule"]
        for result in results
        if "work_ratio" in result and not math.isclose(result["work_ratio"], 1.0, rel_tol=1e-6)
    ]
    if not names:
        return []
    return [f"busy for another time in all, so that their bubbles say little: {', '.join(names)}"]


def compare_families(
    args: argparse.Namespace, profile_of: Profiles, memory_limit: float | None
) -> list[dict[str, Any]]:
    """What each family comes to with its profile, or why it cannot be built."""
    from pipeloom.ir.model.problem import Objective
    from pipeloom.solver.families import FAMILIES, build_family

    results = []
    for name in FAMILIES:
        try:
            schedule = build_family(
                name,
                profile_of(name),
                args.microbatches,
                memory_limit=memory_limit,
                objective=Objective(args.objective),
            )
        except InfeasibleError as error:
            results.append(_infeasible(name, error))
        except InputError as error:
            reason = str(error).removeprefix(f"{name}: ")
            results.append({"schedule": name, "status": "unsupported", "reason": reason})
        else:
            results.append(measure(name, schedule))
    return results


def load_profiles(
    args: argparse.Namespace,
) -> tuple[ProfileSource, Profile, Profiles, Cuts | None]:
    """The profile as it was read, by stages, that of each family, and how it is cut."""
    from pipeloom.planner.partition.fixed_cut import profiles_of

    with watched() as display, typed("partition", microbatches=MICROBATCHES):
        source = read_profile(args, display)
        return source, *profiles_of(source, args.microbatches, args.partition)


def _optimized(
    args: argparse.Namespace, source: ProfileSource, cuts: Cuts | None
) -> dict[str, Any]:
    of_cuts = cuts is not None and args.passing == "activations"
    try:
        schedule, stopped = solve(args, source, cuts, args.memory_limit)
    except InfeasibleError as error:
        return _infeasible(OPTIMIZER, error)
    except InputError as error:
        return {"schedule": OPTIMIZER, "status": "unsupported", "reason": str(error)}
    if stopped:
        print(f"pipeloom: interrupted: {OPTIMIZER} is the best so far", file=sys.stderr)
    return measure(OPTIMIZER, schedule) | {"interrupted": stopped, "all_cuts": of_cuts}


def solve(
    args: argparse.Namespace,
    source: ProfileSource,
    cuts: Cuts | None,
    memory_limit: float | None,
    label: str = "",
) -> tuple[Schedule, bool]:
    """The optimizer's schedule, under the bound on all cuts where it cuts layers; whether Ctrl-C
    was pressed. Raises InfeasibleError where none fits, InputError for several placements."""
    from pipeloom.planner.partition.joint import under_all_cuts
    from pipeloom.planner.plan import optimize
    from pipeloom.planner.progress import labelled

    of_cuts = cuts is not None and args.passing == "activations"
    names = ["objective", "passing", "placement", "solver", "time_limit", "work_limit", "seed"]
    if of_cuts:
        names += ["partition", "min_layers", "max_layers"]
    given = source if cuts is None or of_cuts else cuts.into(cuts.layers.ranks)
    with (
        watched(args.quiet) as display,
        typed(*OPTIMIZER_OPTIONS, cache=CACHE, microbatches=MICROBATCHES),
        interruptible() as interrupt,
    ):
        if args.placement.name == AUTO:
            raise InputError(ONE_PLACEMENT)
        answer = optimize(
            given,
            args.microbatches,
            memory_limit=memory_limit,
            **options(args, *names),
            cache=cache_folder(args),
            progress=labelled(label, display) if label else display,
            should_stop=interrupt,
        )
    return under_all_cuts(answer) if of_cuts else answer.schedule, answer.stopped


def _infeasible(name: str, error: InfeasibleError) -> dict[str, Any]:
    return {
        "schedule": name,
        "status": "infeasible",
        error.smallest_key: error.smallest,
        "rank": error.rank,
    }


def measure(name: str, schedule: Schedule) -> dict[str, Any]:
    """The figures of one schedule, by both costs; ``work_ratio``: what its ranks are busy for in
    all, over the time of every stage's F, B and W of every microbatch."""
    from pipeloom.ir.cost.simulator import simulate
    from pipeloom.ir.model.problem import Objective
    from pipeloom.planner.problem_setup import transfer_note
    from pipeloom.report.summaries import gap, scope

    timing, report = schedule.timing or simulate(schedule), schedule.report
    known, problem = gap(schedule), schedule.problem
    plain = problem.microbatches * sum(s.t_f + s.t_b + s.t_w for s in problem.profile.stages)
    return {
        "schedule": name,
        "bubble_rate_period": timing.bubble_rate(Objective.PERIOD),
        "bubble_rate_makespan": timing.bubble_rate(Objective.MAKESPAN),
        "period": timing.period,
        "makespan": timing.makespan,
        **_averaging(schedule, timing),
        "work_ratio": timing.work / plain if plain > 0 else 1.0,
        "peak_memory": max(timing.peak_memory),
        "status": report.status.value if report and known is not None else "built",
        "lower_bound": report.lower_bound if report else None,
        "gap": known,
        "scope": scope(problem, paired=any(schedule.pairs)),
        "note": transfer_note(schedule),
    }


def _averaging(schedule: Schedule, timing: Timing) -> dict[str, float]:
    """What averaging over replicas adds to the cost, and the sum; nothing where there are none."""
    if not any(timing.averages):
        return {}
    objective = schedule.problem.objective
    return {"averaging": timing.exposed(objective), "step": timing.step(objective)}


def _row(result: dict[str, Any]) -> list[str]:
    from pipeloom.ir.units import amount, duration, exact_amount
    from pipeloom.report.summaries import percent

    name, status = result["schedule"], result["status"]
    if status == "infeasible":
        of_limit = "smallest_memory_limit" in result
        of = "" if of_limit else " of device memory"
        smallest = result["smallest_memory_limit" if of_limit else "smallest_device_memory"]
        needs = f"infeasible: needs {exact_amount(smallest)}{of} on rank {result['rank']}"
        return [name, *["-"] * 5, needs]
    if status == "unsupported":
        return [name, *["-"] * 5, result["reason"]]
    gap = f", gap {percent(result['gap'])}" if result["gap"] and status != "optimal" else ""
    gap += ", interrupted" if result.get("interrupted") else ""
    return [
        name,
        duration(result["period"]),
        percent(result["bubble_rate_period"]),
        duration(result["makespan"]),
        percent(result["bubble_rate_makespan"]),
        amount(result["peak_memory"]),
        status + gap + (f"; {result['note']}" if result["note"] else ""),
    ]
