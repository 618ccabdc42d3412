"""Trains cases with the runtime and with plain PyTorch, and compares the results.

Cases that need the same number of processes share one launch; the others run on threads.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest.mock import patch

import torch

from pipeloom.ir import PipeloomError
from pipeloom.runtime import LaunchError, launch_ranks
from tests.support.hub import on_threads
from tests.support.inside import processes

from .cases import DEVICE, Case, UnmadeError
from .comparing import compared
from .plain import Found, Plain
from .ranks import AFTER, patience, run_cases

LONGEST = 400
IMPORTED = ("tests.parity.ranks", "transformers.models.llama.modeling_llama")
Rows = Sequence[Found | str]  # the result of each rank, or the message of its refusal


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case.

    ``faults``: one line per fault. ``refused``: the message, if the pipeline refuses the case.
    ``unmade``: why the case cannot be built.
    """

    faults: tuple[str, ...] = ()
    refused: str | None = None
    unmade: str | None = None


def group_of(case: Case) -> int:
    """The number of processes of the case, or 0 for threads; equal numbers run together."""
    return case["ranks"] * case.replicas * case.width if case.in_processes else 0


def checked(cases: Sequence[Case]) -> Iterator[tuple[Case, Outcome]]:
    """Yield each case with its outcome."""
    groups = defaultdict[int, list[Case]](list)
    for case in dict.fromkeys(cases):
        if (outcome := _unmade(case)) is not None:
            yield case, outcome
        else:
            groups[group_of(case)].append(case)
    for group in groups.values():
        for case, found in _trained(group):
            yield case, _judged(case, found)


def check(case: Case) -> Outcome:
    """Train a case both ways and compare."""
    ((_, outcome),) = checked([case])
    return outcome


def _unmade(case: Case) -> Outcome | None:
    """The reason why the case has no program, or None."""
    try:
        for count in {step.count for step in case.steps}:
            case.program(count)
    except (UnmadeError, ValueError) as error:
        return Outcome(unmade=str(error))
    except PipeloomError as error:
        return _refused(str(error))
    return None


def _trained(cases: Sequence[Case]) -> Iterator[tuple[Case, Rows | LaunchError]]:
    """Yield the results of all ranks for each case, or the error that ended it."""
    with tempfile.TemporaryDirectory() as folder:
        rest = [*cases]
        while rest:
            rows, error = _launched(rest, folder)
            yield from zip(rest, rows, strict=False)
            rest = rest[len(rows) :]
            if error is not None:
                yield rest.pop(0), error


def _launched(cases: Sequence[Case], folder: str) -> tuple[list[Rows], LaunchError | None]:
    """The results of the first of these cases, up to one that fails, and its error."""
    if not cases[0].in_processes:
        return _on_threads(cases[0], folder)
    told = defaultdict[int, list[Found | str]](list)
    world, error = group_of(cases[0]), None
    most = max(map(patience, cases))
    seconds = 2 * most + sum(map(patience, cases))
    options: Any = {"timeout": seconds, "message_timeout": most, "device": DEVICE}

    def listen(row: tuple[int, Found | str]) -> None:
        told[row[0]].append(row[1])

    preloaded = (*IMPORTED, *processes.PRELOADED)  # imported once for all processes
    try:
        with patch.object(processes, "PRELOADED", preloaded):
            launch_ranks(run_cases, world, (cases, folder), listener=listen, **options)
    except LaunchError as failure:
        error = failure
    done = next((i for i in range(len(cases)) if len(told[i]) < world), len(cases))
    return [told[i] for i in range(done)], error


def _on_threads(case: Case, folder: str) -> tuple[list[Rows], LaunchError | None]:
    rows: list[Found | str] = []
    try:
        on_threads(
            run_cases, case["ranks"], ([case], folder, lambda row: rows.append(row[1])), timeout=240
        )
    except LaunchError as failure:
        return [], failure
    return [rows], None


def _judged(case: Case, found: Rows | LaunchError) -> Outcome:
    if isinstance(found, LaunchError):
        return _failed(case, found)
    refusals = [row for row in found if isinstance(row, str)]
    trained = [row for row in found if not isinstance(row, str)]
    if refusals:
        by_some = Outcome((f"refused by some ranks: {refusals[0]}",))
        return by_some if trained else _refused(refusals[0])
    wanted = _wanted(case)
    return wanted if isinstance(wanted, Outcome) else Outcome((*compared(case, trained, wanted),))


def _failed(case: Case, error: LaunchError) -> Outcome:
    text = str(error)
    told = any(f": {kind}: " in text for kind in ("InputError", "ShapeError"))
    if error.exit_code == 2 or (told and AFTER not in text):
        return _refused(text)
    if isinstance(wanted := _wanted(case), Outcome):
        return wanted
    last = [line for line in error.details.splitlines() if line.startswith("  File")][-1:]
    return Outcome((f"{text} {' '.join(last)}".replace("\n", " | "),))


def _wanted(case: Case) -> Found | Outcome:
    """The result of one process, or the reason why there is none."""
    try:
        return Plain(case).run()
    except Exception as error:
        return Outcome(unmade=f"one process: {type(error).__name__}: {error}")


def _refused(line: str) -> Outcome:
    readable = len(line.splitlines()) == 1 and len(line) <= LONGEST
    return Outcome(refused=line) if readable else Outcome((f"refused in {line!r}",))


def shrunk(case: Case, outcome: Outcome) -> tuple[Case, Outcome]:
    """Remove as many choices as possible such that the case is still at fault."""
    for axis, _ in case.choices:
        less = case.without(axis)
        found = check(less)
        if found.faults:
            case, outcome = less, found
    return case, outcome


def judge(case: Case, cases: Sequence[Case]) -> None:
    """Fail if ``case``, one of ``cases``, does not train as in one process."""
    outcome = outcome_of(case, cases)
    assert outcome == Outcome(), f'python -m tests.parity "{case}": {outcome}'


def outcome_of(case: Case, cases: Sequence[Case]) -> Outcome:
    """The outcome of ``case``; all of ``cases`` with as many processes share its launch."""
    torch.set_num_threads(1)
    return _outcomes(tuple(c for c in cases if group_of(c) == group_of(case)))[case]


@cache
def _outcomes(cases: tuple[Case, ...]) -> dict[Case, Outcome]:
    return dict(checked(cases))
