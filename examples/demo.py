"""A complete run on this machine: ``python -m examples.demo``, or ``make demo``.

It profiles a byte-level GPT, plans schedules under a memory limit, compiles them, and runs them on
four local processes. One process trains the same model on the same batches for comparison. Each
stage of the demo is one call of the library, which is printed; the ``pipeloom`` command of the same
name does the same. All files are written to ``out/demo/``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pipeloom
from pipeloom.ir.formats import check_writable
from pipeloom.ir.units import duration
from pipeloom.report.summaries import facts
from pipeloom.runtime.models.by_name import load_source

from .demo_progress import Phases
from .demo_report import TOLERANCE, Result, Run, cores, curve, largest_difference, report, timing
from .reference import train_alone

RANKS = 4
PACED_STEPS = 4
# the title of each schedule, and the beginning of its file names
PLANS = {"1F1B": "1f1b", "best, 1F1B's memory": "best", "best, twice that": "best-2x"}


@dataclass(frozen=True, slots=True)
class Settings:
    model: str
    steps: int
    microbatches: int
    time_limit: float
    folder: Path
    phases: Phases = field(default_factory=lambda: Phases(len(PLANS) + 5))

    def file(self, name: str) -> str:
        return str(self.folder / name)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo.

    Returns the exit code: 0 if the loss fell and equals that of training in one process, within a
    tolerance.
    """
    settings = _settings(argv)
    settings.folder.mkdir(parents=True, exist_ok=True)
    try:
        return _demo(settings)
    except pipeloom.PipeloomError as error:
        print(f"demo: {error}", file=sys.stderr)
        return error.exit_code


def _demo(settings: Settings) -> int:
    _introduce(settings)
    _profile(settings)
    _plan(settings)
    _compile(settings)
    results = [_train(settings, title, name) for title, name in PLANS.items()]
    alone = _train_alone(settings)
    picture = _picture(settings, paced=_few_cores())
    print(f"\n{report(results)}\n")
    difference = largest_difference(alone, (result.run.losses for result in results))
    same, fell = difference <= TOLERANCE, alone[-1] < alone[0]
    print(
        f"Loss: {'fell' if fell else 'DID NOT FALL'}; each schedule's curve is "
        f"{'' if same else 'NOT '}that of one process: they differ by at most {difference:.1e} in "
        "any "
        f"step ({TOLERANCE:g} allowed)."
    )
    print(f"All of it took {settings.phases.seconds:.0f} s.")
    print(f"Planned and measured timelines: {picture}")
    return 0 if same and fell else 1


def _settings(argv: Sequence[str] | None) -> Settings:
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument("--steps", type=int, default=30, help="optimizer steps, 30 by default")
    parser.add_argument("-m", "--microbatches", type=int, default=8, help="a step, 8 by default")
    parser.add_argument("--time-limit", type=float, default=10.0, help="of each solve, in seconds")
    parser.add_argument("--small", action="store_true", help="a tiny model, for a quick try")
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="out/demo by default")
    args = parser.parse_args(argv)
    model = "examples.gpt:small" if args.small else "examples.gpt:GPT"
    return Settings(model, args.steps, args.microbatches, args.time_limit, args.out)


def _introduce(settings: Settings) -> None:
    print(
        f"A byte-level GPT ({settings.model}) on {RANKS} local processes and {cores()} cores, "
        "trained on the\nsource of Python's standard library."
    )
    if _few_cores():
        print(
            f"\n{RANKS} ranks share {cores()} cores here: whatever the schedule, a step takes its "
            "computing time on those cores\nat least, since an idle rank's core speeds the others "
            "up. The comparison then shows that all train the\nsame, hardly which is faster. So "
            "each schedule is run once more, paced: every op sleeps until its time\nin the profile "
            f"(taken while all ranks compute) is over, as on {RANKS} devices of that speed. These "
            "steps show\nwhat the order of ops gains."
        )


def _profile(settings: Settings) -> None:
    settings.phases.begin("Measure the stages, all ranks at once")
    check_writable(settings.file("profile.json"))
    found = _call("measure", settings.model, stages=RANKS, ranks=RANKS)
    for number, stage in enumerate(found.profile.stages):
        times = (duration(time) for time in (stage.t_f, stage.t_b, stage.t_w))
        print("stage {}: T_F {}, T_B {}, T_W {}".format(number, *times))
    pipeloom.write_json(found.document(), settings.file("profile.json"))


def _plan(settings: Settings) -> None:
    settings.phases.begin(
        "Plan: 1F1B, then the best schedule in the memory that 1F1B takes, and in twice that"
    )
    profile, microbatches = settings.file("profile.json"), settings.microbatches
    # all ranks finish a step before the next one starts, so the cost of a step is the makespan
    simple = _call("build", "1f1b", profile, microbatches, objective="makespan")
    _keep(settings, "1f1b", simple)
    peak = max(timing(simple).peak_memory)
    for name, limit in (("best", peak), ("best-2x", 2 * peak)):
        options = {"memory_limit": round(limit), "time_limit": settings.time_limit}
        answer = _call("optimize", profile, microbatches, objective="makespan", **options)
        _keep(settings, name, answer.schedule)


def _keep(settings: Settings, name: str, schedule: pipeloom.Schedule) -> None:
    print(facts(schedule))
    pipeloom.write_json(pipeloom.dump_schedule(schedule), settings.file(f"{name}.json"))


def _compile(settings: Settings) -> None:
    settings.phases.begin("Compile each to instruction lists")
    for name in PLANS.values():
        program = _call("compile", settings.file(f"{name}.json"))
        pipeloom.write_json(pipeloom.dump_program(program), settings.file(f"{name}-program.json"))


def _train(settings: Settings, title: str, name: str) -> Result:
    settings.phases.begin(f"Train by it: {title}")
    run = _run(settings, name, settings.steps, "measured")
    paced = _run(settings, name, PACED_STEPS, "paced", pace=True) if _few_cores() else None
    return Result(title, pipeloom.load_schedule(settings.file(f"{name}.json")), run, paced)


def _run(settings: Settings, name: str, steps: int, suffix: str, **options: Any) -> Run:
    program, trace = (settings.file(f"{name}-{end}.json") for end in ("program", suffix))
    if sys.stderr.isatty():
        options["quiet"] = False
    answer = _call("run", program, settings.model, steps=steps, trace=trace, **options)
    run = Run(answer.to_dict(), pipeloom.load_schedule(trace))
    print(f"loss {curve(run.losses)}; median step {duration(run.step)}")
    return run


def _train_alone(settings: Settings) -> list[float]:
    settings.phases.begin("The same model on the same batches in one process, by plain autograd")
    history = train_alone(
        load_source(settings.model),
        settings.steps,
        settings.microbatches,
        lambda done, loss: settings.phases.step(done, settings.steps, loss),
    )
    print(f"loss {curve(history)}")
    return history


def _picture(settings: Settings, *, paced: bool) -> str:
    settings.phases.begin(
        "Planned and measured timelines in one picture" + (" (the paced runs)" if paced else "")
    )
    suffix = "paced" if paced else "measured"
    names = [f"{name}{end}.json" for name in PLANS.values() for end in ("", f"-{suffix}")]
    titles = [f"{title}, {kind}" for title in PLANS for kind in ("planned", suffix)]
    picture = settings.file("timelines.svg")
    _call("show", *map(settings.file, names), titles=titles, output=picture)
    return picture


def _few_cores() -> bool:
    return cores() < RANKS


def _call(name: str, *given: Any, **options: Any) -> Any:
    """Print a call of a function of the library, run it, and return its result.

    Raises the function's errors.
    """
    words = [*map(repr, given), *(f"{key}={value!r}" for key, value in options.items())]
    print(f">>> pipeloom.{name}({', '.join(words)})", flush=True)
    return getattr(pipeloom, name)(*given, **options)


if __name__ == "__main__":
    raise SystemExit(main())
