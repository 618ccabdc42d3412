"""Answers of the optimizer to instances of all kinds, recorded, and held against the record."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..recording import record
from ..spreading import add_workers, spread
from .asking import ask, families
from .comparing import Answer, Answers, broken, differences
from .instances import FAMILIES, Instance, built, instances

HERE = Path(__file__).parent
RECORDED = HERE / "results" / "answers.json"


def main(arguments: list[str]) -> int:
    """Asks and records; with ``--check`` 1 where an answer is worse than the one recorded."""
    options = _options(arguments)
    asked = [*instances(), *built(families())]
    chosen = [each for each in asked if not options.only or each.kind in options.only]
    found = _answers(chosen, options)
    if options.check:
        return check(_recorded(), found, whole=not options.only)
    if options.twice:
        found = _marked(found, _answers(chosen, options))
    kept = _recorded() if options.only else {}
    print(f"recorded in {record(HERE, 'answers', {'answers': {**kept, **found}})}")
    print(_summary(found))
    return 0


def _options(arguments: list[str]) -> argparse.Namespace:
    kinds = [*dict.fromkeys(each.kind for each in instances()), FAMILIES]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.answers", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with what is recorded")
    parser.add_argument(
        "--only", action="append", choices=kinds, metavar="KIND",
        help=f"this kind alone, may be given again: {', '.join(kinds)}",
    )  # fmt: skip
    add_workers(parser)
    parser.add_argument(
        "--twice", action="store_true", help="ask again and record which answers are repeated"
    )
    return parser.parse_args(arguments)


def _answers(chosen: Sequence[Instance], options: argparse.Namespace) -> dict[str, Answer]:
    """By the instance's name; each is told as soon as it is there."""
    found: dict[str, Answer] = {}
    for instance, answer in spread(options, ask, chosen):
        found[instance.name] = answer
        print(f"{answer['seconds']:6.2f} s  {instance.name}: {_words(answer)}", flush=True)
    return found


def _words(answer: Answer) -> str:
    if answer.get("gap") is None:
        return str(answer["status"])
    return f"{answer['status']}, {answer['cost']:.6g}, gap {answer['gap']:.2%}"


def _marked(found: Answers, again: Answers) -> dict[str, Answer]:
    """Each answer with ``repeatable``: whether it was the same, to the last digit and op, again."""
    other = {
        name: list(differences({name: answer}, {name: again[name]}))
        for name, answer in found.items()
    }
    _tell("not repeated", [line for lines in other.values() for line in lines])
    return {name: {**answer, "repeatable": not other[name]} for name, answer in found.items()}


def _recorded() -> dict[str, Answer]:
    answers: dict[str, Answer] = json.loads(RECORDED.read_text(encoding="utf-8"))["answers"]
    return answers


def check(known: Answers, found: Answers, *, whole: bool) -> int:
    """Says what differs; 1 where anything is worse than the rules allow.

    ``whole``: all instances were asked, so that none of those recorded may be missing.
    """
    lost = [name for name in known if name not in found] if whole else []
    worse = [*(f"{name}: not asked any more" for name in lost), *broken(known, found)]
    _tell("differs", differences(known, found))
    _tell("worse", worse)
    common = [name for name in found if name in known]
    same = sum(not list(differences({n: known[n]}, {n: found[n]})) for n in common)
    programs = sum(known[n].get("program") != found[n].get("program") for n in common)
    print(_summary(found))
    print(f"{same} as recorded to the last op, {len(worse)} worse; {programs} other programs")
    return 1 if worse else 0


def _tell(word: str, lines: Iterable[str]) -> None:
    for line in lines:
        print(f"{word}: {line}")


def _summary(found: Answers) -> str:
    """How many of each status, in what time."""
    counts = Counter(answer["status"] for answer in found.values())
    words = ", ".join(f"{number} {status}" for status, number in counts.most_common())
    seconds = sum(answer["seconds"] for answer in found.values())
    return f"{len(found)} answers in {seconds:.0f} s: {words}"
