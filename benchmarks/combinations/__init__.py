"""Features of the runtime at random, together: each case trains as one process does, or is refused
in one readable line before its first step."""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from pipeloom.ir.errors import PipeloomError
from pipeloom.runtime.errors import LaunchError
from pipeloom.runtime.launch.processes import launch

from ..recording import record
from .cases import AXES, Case
from .comparing import compared
from .plain import Found, Plain
from .ranks import AFTER, patience, run_cases

HERE = Path(__file__).parent
LONGEST, TOGETHER = 400, 12


@dataclass(frozen=True)
class Outcome:
    """``faults``: lines on what is not as promised; ``refused``: the line of a refusal; ``unmade``:
    why there is no such case."""

    faults: tuple[str, ...] = ()
    refused: str | None = None
    unmade: str | None = None


def main(arguments: list[str]) -> int:
    """Checks, prints and records; 1 where anything is wrong."""
    options = _options(arguments)
    torch.set_num_threads(1)
    began, faults = perf_counter(), list[str]()
    refused, axes, done = Counter[str](), Counter[str](), Counter[str]()
    numbers = range(options.first, options.first + options.count)
    cases = [Case.drawn(options.seed, number) for number in numbers]
    for case, outcome in checked(cases):
        if outcome.faults and options.shrink:
            case, outcome = shrunk(case, outcome)  # noqa: PLW2901
        for line in outcome.faults:
            faults.append(f"{case}: {line}")
            print(faults[-1], flush=True)
        kind = "unmade" if outcome.unmade else "refused" if outcome.refused else "trained"
        done["at fault" if outcome.faults else kind] += 1
        if options.verbose:
            print(f"{case}: {outcome.unmade or outcome.refused or kind}", flush=True)
        refused[_numberless(outcome.refused or outcome.unmade or "")] += 1
        axes.update(f"{axis}={value}" for axis, value in case.choices if kind == "trained")
    seconds = perf_counter() - began
    result = {"seed": options.seed, "first": options.first, "cases": options.count, **done}
    print(f"{result}, {len(faults)} faults, {seconds:.0f} s")
    for line, times in refused.most_common():
        if line:
            print(f"{times:5} x {line}")
    never = {f"{axis}={v}" for axis, vs in AXES.items() for v in vs[1:]} - axes.keys()
    if options.record:
        made = {"faults": faults, "seconds": seconds, "refused": refused, "never": sorted(never)}
        print(f"recorded in {record(HERE, 'combinations', result | made)}")
    return 1 if faults else 0


def checked(cases: Sequence[Case]) -> Iterator[tuple[Case, Outcome]]:
    """Each case with what came of it; those with as many ranks and replicas share processes."""
    groups: dict[object, list[Case]] = {}
    for case in cases:
        groups.setdefault((case["ranks"], case.replicas, case.width), []).append(case)
    for group in groups.values():
        for i in range(0, len(group), TOGETHER):
            yield from _checked(group[i : i + TOGETHER])


def check(case: Case) -> Outcome:
    """Trains the case both ways and compares."""
    ((_, outcome),) = _checked([case])
    return outcome


def _checked(cases: Sequence[Case]) -> Iterator[tuple[Case, Outcome]]:
    made = list[tuple[Case, Found]]()
    for case in cases:
        wanted = _wanted(case)
        if isinstance(wanted, Outcome):
            yield case, wanted
        else:
            made.append((case, wanted))
    if not made:
        return
    try:
        rows = _launched([case for case, _ in made])
    except LaunchError as error:
        if len(made) == 1:
            yield made[0][0], _failed(error)
            return
        for case, _ in made:
            yield case, check(case)
        return
    for (case, wanted), found in zip(made, rows, strict=True):
        refusals = [row for row in found if isinstance(row, str)]
        trained = [row for row in found if not isinstance(row, str)]
        if not refusals:
            yield case, Outcome(tuple(compared(case, trained, wanted)))
        elif trained:
            yield case, Outcome((f"refused by some ranks: {refusals[0]}",))
        else:
            yield case, _refused(refusals[0])


def _wanted(case: Case) -> Found | Outcome:
    """The result of one process, or why there is none."""
    try:
        for count in {step.count for step in case.steps}:
            case.program(count)
    except (PipeloomError, ValueError) as error:
        return Outcome(unmade=str(error))
    try:
        return Plain(case).run()
    except Exception as error:
        return Outcome(unmade=f"one process: {type(error).__name__}: {error}")


def _failed(error: LaunchError) -> Outcome:
    text = str(error)
    told = any(f": {kind}: " in text for kind in ("InputError", "ShapeError"))
    if error.exit_code == 2 or (told and AFTER not in text):
        return _refused(text)
    last = [line for line in error.details.splitlines() if line.startswith("  File")][-1:]
    return Outcome((f"{text} {' '.join(last)}".replace("\n", " | "),))


def _refused(line: str) -> Outcome:
    readable = len(line.splitlines()) == 1 and len(line) <= LONGEST
    return Outcome(refused=line) if readable else Outcome((f"refused in {line!r}",))


def _launched(cases: Sequence[Case]) -> list[Sequence[Found | str]]:
    """Findings of the ranks, by case; all in the same processes."""
    first, most = cases[0], max(map(patience, cases))
    seconds = 2 * most + sum(map(patience, cases))
    with tempfile.TemporaryDirectory() as folder:
        given: Any = (run_cases, first["ranks"] * first.width, (cases, folder))
        rows = launch(*given, replicas=first.replicas, timeout=seconds, message_timeout=most)
    return [[row[i] for row in rows.values()] for i in range(len(cases))]


def shrunk(case: Case, outcome: Outcome) -> tuple[Case, Outcome]:
    """The case with as few choices as still are at fault."""
    for axis, _ in case.choices:
        less = case.without(axis)
        found = check(less)
        if found.faults:
            case, outcome = less, found
    return case, outcome


def _numberless(line: str) -> str:
    return "".join("#" if letter.isdigit() else letter for letter in line)[:200]


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.combinations", description=__doc__)
    today = int(f"{datetime.now(UTC):%Y%m%d}")
    parser.add_argument("--seed", type=int, default=today, help="today's date by default")
    parser.add_argument("--first", type=int, default=0, help="the first case of the seed")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--shrink", action="store_true", help="find the fewest choices at fault")
    parser.add_argument("--verbose", action="store_true", help="tell of each case")
    parser.add_argument("--record", action="store_true")
    return parser.parse_args(arguments)
