"""The replay: what the optimizer answers to questions of all kinds, compared with a record."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pipeloom.planner.build import families

from ..recording import environment
from ..spreading import add_workers, spread
from .asking import ask
from .comparing import Answer, Answers, broken, majority
from .instances import Family, Question, built, questions

RECORDED = Path(__file__).parent / "results" / "answers.json"


def main(arguments: list[str]) -> int:
    """Asks and records; with ``--check`` 1 where an answer is worse than the one recorded."""
    asked: list[Question | Family] = [*questions(), *built(families())]
    options = _options(arguments, [*dict.fromkeys(each.kind for each in asked)])
    chosen = [each for each in asked if not options.only or each.kind in options.only]
    found = _answers(chosen, options)
    print(_summary(found))
    if options.check:
        return check(_recorded(), found, whole=not options.only)
    if not options.only:
        _write(found)
    return 0


def _options(arguments: list[str], kinds: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.answers", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with what is recorded")
    parser.add_argument(
        "--only", action="append", choices=kinds, metavar="KIND",
        help=f"only this kind, not recorded; may be given again: {', '.join(kinds)}",
    )  # fmt: skip
    add_workers(parser)
    return parser.parse_args(arguments)


def _answers(chosen: Sequence[Question | Family], options: argparse.Namespace) -> dict[str, Answer]:
    """By the name of what was asked; each is printed as soon as it is there."""
    found: dict[str, Answer] = {}
    for asked, answer in spread(options, ask, chosen):
        found[asked.name] = answer
        costs = sorted(cost for cost in answer.get("cost", ()) if cost is not None)
        words = [*dict.fromkeys(answer.get("status", ())), *(f"{cost:.6g}" for cost in costs)]
        print(f"{answer['seconds']:6.2f} s  {asked.name}: {' '.join(words)}", flush=True)
    return found


def _recorded() -> dict[str, Answer]:
    answers: dict[str, Answer] = json.loads(RECORDED.read_text(encoding="utf-8"))["answers"]
    return answers


def _write(answers: Answers) -> None:
    """One line an answer."""
    rows = (f"{json.dumps(name)}: {json.dumps(answer)}" for name, answer in answers.items())
    head, body = json.dumps(environment(), indent=1), ",\n".join(rows)
    RECORDED.write_text(
        f'{{"environment": {head},\n"answers": {{\n{body}\n}}}}\n', encoding="utf-8"
    )
    print(f"recorded in {RECORDED}")


def check(known: Answers, found: Answers, *, whole: bool) -> int:
    """Prints what is worse; 1 where anything is worse than the rules allow.

    ``whole``: everything was asked, so that nothing recorded may be missing.
    """
    lost = [name for name in known if name not in found] if whole else []
    worse = [*(f"{name}: not asked any more" for name in lost), *broken(known, found)]
    for line in worse:
        print(f"worse: {line}")
    same = sum(known.get(name, {}).get("order") == each["order"] for name, each in found.items())
    print(f"{same} as recorded to the last op, {len(worse)} worse")
    return 1 if worse else 0


def _summary(found: Answers) -> str:
    """How many of each status, in what time."""
    counts = Counter(majority(each["status"]) for each in found.values() if "status" in each)
    words = ", ".join(f"{number} {status}" for status, number in counts.most_common())
    seconds = sum(answer["seconds"] for answer in found.values())
    return f"{len(found)} answers in {seconds:.0f} s: {words}"
