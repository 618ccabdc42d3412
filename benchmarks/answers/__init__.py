"""What the optimizer answers to instances of all kinds, recorded, and held against the record."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..recording import record
from .asking import ask, families
from .comparing import broken, differences
from .instances import Instance, built, instances

HERE = Path(__file__).parent
RECORDED = HERE / "results" / "answers.json"

Answers = dict[str, dict[str, Any]]


def main(arguments: list[str]) -> int:
    """Asks and records; with ``--check`` 1 where an answer is worse than the one recorded."""
    options = _options(arguments)
    chosen = [each for each in _all() if not options.only or each.kind in options.only]
    found = _asked(chosen, options.jobs)
    if options.check:
        return _checked(found, whole=not options.only)
    if options.twice:
        _mark(found, _asked(chosen, options.jobs))
    answers = (_known() if options.only else {}) | found
    print(f"recorded in {record(HERE, 'answers', {'answers': answers})}: {summary(found)}")
    return 0


def _options(arguments: list[str]) -> argparse.Namespace:
    kinds = list(dict.fromkeys(each.kind for each in instances())) + ["families"]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.answers", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with what is recorded")
    parser.add_argument("--only", action="append", choices=kinds, help="a kind; again for more")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--twice", action="store_true", help="mark what a second run repeats")
    return parser.parse_args(arguments)


def _all() -> list[Instance]:
    return [*instances(), *built(families())]


def _asked(chosen: Sequence[Instance], jobs: int) -> Answers:
    """One line each, as soon as it is there."""
    found: Answers = {}
    with ThreadPoolExecutor(jobs) as threads:
        for instance, answer in zip(chosen, threads.map(ask, chosen), strict=True):
            assert instance.name not in found, instance.name
            found[instance.name] = answer
            print(f"{answer['seconds']:6.2f} s  {instance.name}: {_line(answer)}", flush=True)
    return found


def _line(answer: Mapping[str, Any]) -> str:
    if answer.get("gap") is None:
        return str(answer["status"])
    return f"{answer['status']}, {answer['cost']:.6g}, gap {answer['gap']:.2%}"


def _mark(found: Answers, again: Answers) -> None:
    for name, answer in found.items():
        answer["repeatable"] = not list(differences({name: answer}, {name: again[name]}))
        if not answer["repeatable"]:
            print(*differences({name: answer}, {name: again[name]}), sep="\n")


def _known() -> Answers:
    answers: Answers = json.loads(RECORDED.read_text(encoding="utf-8"))["answers"]
    return answers


def _checked(found: Answers, *, whole: bool) -> int:
    known = _known()
    lost = sorted(known.keys() - found.keys()) if whole else []
    wrong = [*(f"{name}: not asked any more" for name in lost), *broken(known, found)]
    for line in differences(known, found):
        print(f"differs: {line}")
    for line in wrong:
        print(f"worse: {line}")
    same = sum(known.get(n, {}).get("order") == found[n].get("order") for n in found)
    print(f"{len(found)} answers, {same} with the schedule recorded, {len(wrong)} worse")
    return 1 if wrong else 0


def summary(found: Answers) -> str:
    """How many of each status, in what time."""
    counts = Counter(answer["status"] for answer in found.values())
    words = ", ".join(f"{number} {status}" for status, number in counts.most_common())
    seconds = sum(answer["seconds"] for answer in found.values())
    return f"{len(found)} answers: {words}; {seconds:.0f} s"
