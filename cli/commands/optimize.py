"""Finds the best schedule for a profile under its memory limit, with a certified lower bound.

Ctrl-C or SIGTERM keeps the best schedule so far and writes it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from pipeloom.ir.errors import InfeasibleError, InputError
from pipeloom.planner.explain.explanation import Explanation, explanation
from pipeloom.planner.partition.joint import Answer, add_partition, by_layers
from pipeloom.planner.partition.joint import choose as choose_cut
from pipeloom.planner.placement.spec import AUTO

from ..arguments import (
    add_instance,
    add_levers,
    add_memory_limit,
    add_output,
    add_passing,
    add_profile,
    add_solver,
    example,
)
from ..inputs import announce_unless_quiet, load, make_problem, named, recomputes_all, typed
from ..output import check_output, finish_schedule, infeasible, print_json
from ..progress import Interrupt, ProgressLine, interruptible

if TYPE_CHECKING:
    from pipeloom.ir.model.problem import Problem
    from pipeloom.ir.model.profile import Profile
    from pipeloom.ir.model.schedule import Schedule
    from pipeloom.planner.cache import ScheduleCache
    from pipeloom.solver.core.options import Order

CACHE = "PIPELOOM_CACHE"
EXPLAIN_SECONDS = 2.0
"""Of the optimizer, for each change of the problem that is tried."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_profile(parser)
    add_instance(parser)
    add_memory_limit(parser)
    add_passing(parser, "auto")
    add_levers(parser)
    add_solver(
        parser,
        time_limit=60.0,
        auto="; --placement auto: in all if given, else as long for each placement and for the "
        "best again",
    )
    add_partition(parser)
    parser.add_argument(
        "--copies",
        type=int,
        choices=[1, 2],
        help="of a stage's weights at most, with --placement auto: by default 2 where the profile "
        "has "
        "device_memory and the sizes that it has to hold, else 1",
    )
    parser.add_argument(
        "--explain",
        action="store_true",
        help="say why no schedule is cheaper, where this one idles, and what more memory or faster "
        "links would buy (takes some seconds more)",
    )
    parser.add_argument(
        "--cache",
        metavar="DIR",
        help="folder in which answers are kept and looked up, each verified again; "
        f"{CACHE} by default, if that is set",
    )
    add_output(parser, "schedule")
    example(
        parser,
        "pipeloom optimize profile.json -m 24 --memory-limit 16 -o schedule.json",
        "pipeloom optimize profile.json -m 24 --placement interleaved:2 -o schedule.json",
        "pipeloom optimize profile.json -m 24 --passing weights -o schedule.json",
        "pipeloom optimize profile.json -m 24 --passing auto -o schedule.json",
        "pipeloom optimize layers.json -m 24 --placement auto --max-layers 8 -o schedule.json",
        "pipeloom optimize profile.json -m 24 --memory-limit 4 --recompute auto -o schedule.json",
        "pipeloom optimize profile.json -m 8 --time-limit 10 --json",
        "pipeloom optimize profile.json -m 24 --memory-limit 12 --explain -o schedule.json",
    )


def run(args: argparse.Namespace) -> int:
    check_output(args)
    if recomputes_all(args) and args.passing != "activations":
        raise InputError(
            f"--passing: expected activations with --recompute all, got {args.passing!r}: "
            "nothing is recomputed where weights travel"
        )
    layered = by_layers(args)
    if args.copies is not None and (layered or args.placement.name != AUTO):
        raise InputError(
            "--copies: expected it with --placement auto and a profile by stages, got "
            f"{args.copies} "
            + ("with a profile by layers" if layered else f"with --placement {args.placement.name}")
        )
    if layered:
        return _cut(args)
    if args.passing == "auto":
        return _choose(args)
    if args.placement.name == AUTO:
        return _choose_placement(args)
    problem = make_problem(args, load(args), args.memory_limit)
    schedule, stopped = solve(args, problem)
    if stopped:
        _say("interrupted: this is the best schedule so far")
    _tell_overfull(args, schedule)
    _finish(args, schedule, stopped, {}, [])
    return 0


def _tell_overfull(args: argparse.Namespace, schedule: Schedule) -> None:
    """Names the fullest rank where stages that stay leave too little of ``device_memory``, which
    nothing kept here."""
    from pipeloom.ir.units import amount
    from pipeloom.solver.placement.search import overfull

    found = overfull(schedule)
    if args.passing == "activations" and found is not None:
        rank, held, device = found
        _say(
            f"note: {named(args.profile)}: device_memory: rank {rank} holds {amount(held)} with "
            "the weights, gradients "
            f"and optimizer state of its stages, more than {amount(device)}; one placement keeps "
            "--memory-limit "
            "alone, --placement auto keeps both"
        )


def _finish(
    args: argparse.Namespace,
    schedule: Schedule,
    stopped: bool,
    answer: dict[str, Any],
    words: list[str],
    *,
    step: float | None = None,
) -> None:
    """Writes the schedule; ``answer`` and ``words`` go with its report, as its explanation does."""
    if args.explain:
        explained = _explain(args, schedule, stopped, step)
        answer, words = answer | {"explanation": explained.as_json()}, [*words, explained.text()]
    finish_schedule(args, schedule, answer, "\n\n".join(words))


def _choose(args: argparse.Namespace) -> int:
    """The fastest scheme, with the table and the reasons; 1 where none fits."""
    if args.placement.name != "linear":
        raise InputError(
            "--placement: expected none with --passing auto, which chooses among them, "
            f"got {args.placement.name!r}"
        )
    from pipeloom.ir.model.problem import Objective
    from pipeloom.planner.passing import reasons
    from pipeloom.planner.passing.choose import choose
    from pipeloom.planner.passing.crossovers import missing_sizes

    profile = load(args)
    lacking = missing_sizes(profile)
    if lacking and profile.ranks > 1:
        _say(f"note: {named(args.profile)}: no {', '.join(lacking)}: {_untold(profile)}")
    with interruptible() as interrupt:
        choice = choose(
            profile,
            args.microbatches,
            memory_limit=args.memory_limit,
            objective=Objective(args.objective),
            search=_searching(args, interrupt),
            should_stop=interrupt,
        )
    if interrupt.pressed:
        _say("interrupted: not every scheme was optimized")
    answer = {"choice": reasons.as_json(choice)} if args.json else {}
    if choice.best is None:
        if args.json:
            print_json({"status": "infeasible", **answer})
        print(f"pipeloom: no scheme fits:\n{reasons.text(choice)}", file=sys.stderr)
        return 1
    notes = [] if args.json else [reasons.text(choice)]  # the sentences take their time: once
    best = choice.best
    _finish(args, best.schedule, interrupt.pressed, answer, notes, step=best.step)
    return 0


def _untold(profile: Profile) -> str:
    """What is assumed of messages whose size, or whose links, a profile does not tell."""
    if profile.t_comm is not None and profile.links is None:
        return "each message counts as t_comm, whatever its size"
    if profile.links is None:
        return "messages take no time, and the choice may be another where they do"
    return "messages of unknown size count as empty, and the choice may be another with them"


def _choose_placement(args: argparse.Namespace) -> int:
    """The best of all placements, with the table; 1 where none fits."""
    from pipeloom.ir.model.problem import Objective
    from pipeloom.planner.placement import choose as auto_placement
    from pipeloom.solver.placement.search import best_placement
    from pipeloom.solver.portfolio import cores

    profile = load(args)
    if args.passing != "activations":
        raise InputError(f"--placement: auto is for --passing activations, got {args.passing!r}")
    if profile.num_stages % profile.ranks:
        raise InputError(
            f"{args.profile}: stages: expected a multiple of {profile.ranks} for --placement auto, "
            f"got {profile.num_stages}"
        )
    with interruptible() as interrupt:
        searches = auto_placement.Searches(args, _cache(args), interrupt)
        chosen = best_placement(
            profile,
            args.microbatches,
            searches,
            **auto_placement.time(args),
            memory_limit=args.memory_limit,
            objective=Objective(args.objective),
            copies=1 if recomputes_all(args) else args.copies,
            abreast=cores(),
            should_stop=interrupt,
            begins=partial(auto_placement.announce, args),
        )
        searches.keep()
    answer, words = {"choice": auto_placement.as_json(chosen)}, auto_placement.text(chosen)
    if chosen.best is None:
        if args.json:
            print_json({"status": "infeasible", **answer})
        print(f"pipeloom: no placement fits:\n{words}", file=sys.stderr)
        return 1
    _finish(args, chosen.best, interrupt.pressed, answer, [words])
    return 0


def _cut(args: argparse.Namespace) -> int:
    """The best cut of the profile's layers, with its stages; 1 where none fits."""
    answer, stopped = solve_cut(args)
    if stopped:
        _say("interrupted: this is the best schedule so far")
    facts = {"partition": answer.facts}
    try:
        schedule = answer.checked()
    except InfeasibleError as error:
        if args.json:
            print_json(infeasible(error) | facts)
        print(f"pipeloom: no cut fits:\n{error}", file=sys.stderr)
        return 1
    _finish(args, schedule, stopped, facts, [answer.text()])
    return 0


def solve_cut(args: argparse.Namespace, label: str = "") -> tuple[Answer, bool]:
    """The best cut of the profile's layers, placement and schedule; whether Ctrl-C was pressed."""
    announce_unless_quiet(args)
    with interruptible() as interrupt:
        search = _beginning(args, interrupt, label)
        answer = choose_cut(args, search, interrupt, _cache(args), lambda line: _say(label + line))
    return answer, interrupt.pressed


def _searching(
    args: argparse.Namespace, interrupt: Interrupt
) -> Callable[[Problem, str, float], Schedule]:
    """Solves one of several problems, named by its progress, in its share of the time or work."""

    def search(problem: Problem, name: str, share: float) -> Schedule:
        schedule, stopped = solve(_limited(args, share), problem, f"{name}: ")
        interrupt.pressed |= stopped
        return schedule

    return search


def _beginning(
    args: argparse.Namespace, interrupt: Interrupt, label: str
) -> Callable[[Problem, str, float, Order | None], Schedule]:
    """The same for a problem that is begun with a known order; it is not kept in a cache by itself.

    Each search has a seed of its own: with the same one, what begins with its own order again finds
    nothing new.
    """
    seeds = count(args.seed)

    def search(problem: Problem, name: str, share: float, start: Order | None) -> Schedule:
        limited = _limited(args, share)
        limited.seed = next(seeds)
        schedule, stopped = _search(limited, problem, f"{label}{name}: ", start)
        interrupt.pressed |= stopped
        return schedule

    return search


def _limited(args: argparse.Namespace, share: float) -> argparse.Namespace:
    """``args`` with a share of the time, or of the work."""
    limits = {"time_limit": args.time_limit * share}
    if args.work_limit is not None:
        limits["work_limit"] = args.work_limit * share
    return argparse.Namespace(**vars(args) | limits)


def _explain(
    args: argparse.Namespace, schedule: Schedule, stopped: bool, step: float | None
) -> Explanation:
    """What can be said; Ctrl-C leaves out what the optimizer has not tried yet."""
    with interruptible() as interrupt:
        seconds = 0.0 if stopped else min(EXPLAIN_SECONDS, args.time_limit)
        return explanation(schedule, seconds, interrupt, _held, step)


def solve(args: argparse.Namespace, problem: Problem, label: str = "") -> tuple[Schedule, bool]:
    """The optimizer with progress and Ctrl-C; whether it was pressed comes with the schedule.

    Where there is a cache, an answer in it is taken, and a new one is kept.
    """
    cache = _cache(args)
    if cache is None:
        return _search(args, problem, label)
    from pipeloom.planner.cache import Question

    limits = args.time_limit, args.work_limit
    question = Question(problem, args.solver, args.seed, *limits, _by_step(args, problem))
    known = cache.find(question)
    if known is not None:
        _say(f"{label}taken from the cache: {cache.path(question)}")
        return known, False
    schedule, stopped = _search(args, problem, label)
    if not stopped:
        cache.keep(question, schedule)
    return schedule, stopped


def _by_step(args: argparse.Namespace, problem: Problem) -> bool:
    """Whether steps are compared, as ``--passing auto`` does, where the optimizer can."""
    from pipeloom.ir.model.placement import Passing

    return args.passing == "auto" and problem.placement.passing is Passing.WEIGHTS


def _cache(args: argparse.Namespace) -> ScheduleCache | None:
    typed_one = getattr(args, "cache", None)
    folder = typed_one or os.environ.get(CACHE)
    if not folder or recomputes_all(args):  # which is no part of the question
        return None
    from pipeloom.planner.cache import ScheduleCache

    try:
        return ScheduleCache(folder, _say)
    except InputError as error:
        option = "--cache" if typed_one else CACHE
        raise InputError(f"{option}{str(error).removeprefix('cache')}") from None


def _say(line: str) -> None:
    print(f"pipeloom: {line}", file=sys.stderr)


def _search(
    args: argparse.Namespace, problem: Problem, label: str, start: Order | None = None
) -> tuple[Schedule, bool]:
    from pipeloom.solver.optimize import optimize

    by_step = _by_step(args, problem)
    progress = ProgressLine(quiet=args.quiet, label=label, by_step=by_step)
    with interruptible() as interrupt, typed("solver"):
        try:
            schedule = optimize(
                problem,
                solver=args.solver,
                time_limit=args.time_limit,
                work_limit=args.work_limit,
                seed=args.seed,
                progress=progress,
                should_stop=interrupt,
                memory=_held,
                by_step=by_step,
                recompute_all=recomputes_all(args),
                start=start,
            )
            progress.end(schedule, interrupt.pressed, _ending(args, schedule))
        finally:
            progress.close()
    return schedule, interrupt.pressed


def _ending(args: argparse.Namespace, schedule: Schedule) -> str:
    """Why a search has ended that proved nothing and that nobody stopped."""
    if args.work_limit is not None:
        return "work is done"
    seconds = schedule.report and schedule.report.solve_seconds
    early = seconds is not None and seconds < args.time_limit
    return "nothing better found" if early else "time is up"


def _held(schedule: Schedule) -> Sequence[float]:
    """What each rank holds in all where the compiled schedule runs."""
    from pipeloom.compiler import compile_schedule
    from pipeloom.ir.cost.memory_footprint import footprint

    return footprint(compile_schedule(schedule)).total
