"""Damaged files and unusual options for every command.

Documents are damaged at random, half of them by crossing with another valid one; one command in
seven has an unusual option. The checks are: exit codes, readable lines that name the file or the
option, ``--json``, SVG, and that nothing else is written. The words in brackets before a failed
case run it again; ``record.json`` holds the last complete run.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

from tests.support.recorded import parser_of, record

from .cases import Case, random_case
from .checks import Outcome, check

HERE = Path(__file__).parent
COUNT = 100_000


def main(arguments: list[str]) -> int:
    """Check, print and record; returns 1 if anything is wrong."""
    parser = parser_of(__name__, __doc__, COUNT)
    parser.add_argument("--first", type=int, default=0, help="the first case of the seed")
    options = parser.parse_args(arguments)
    began = perf_counter()
    print(f"seed {options.seed}", flush=True)
    outcomes: Counter[int] = Counter()
    faults: list[str] = []
    for case, outcome in checked(options.seed, options.first, options.count):
        outcomes[outcome.code] += 1
        faults += [f"{case}: {line}" for line in outcome.faults]
        for line in outcome.faults:
            print(f"{case}: {line}", flush=True)
    seconds = perf_counter() - began
    result = {"seed": options.seed, "cases": options.count, "exit_codes": dict(outcomes)}
    print(f"{result}, {len(faults)} faults, {seconds:.0f} s")
    if options.count >= COUNT:
        print(f"recorded in {record(HERE, result | {'faults': faults, 'seconds': seconds})}")
    return 1 if faults else 0


def checked(seed: int, first: int, count: int) -> Iterator[tuple[Case, Outcome]]:
    """Each case of the seed with its outcome; their files are in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(first, first + count):
            case = random_case(seed, number, Path(folder))
            yield case, check(case)
