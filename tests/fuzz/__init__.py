"""Damaged files and odd options under every command.

Documents are damaged at random, half of them crossed with another valid one, and one command in
seven has an odd option. Checked are exit codes, readable lines that name the file or the option,
``--json``, SVG, and that nothing else is written. A failed case is run again by the words in
brackets before it; ``record.json`` holds the last whole run.
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
    """Checks, prints and records; 1 where anything is wrong."""
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
    """Each case of the seed, and what came of it; their files are in a folder that is removed."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(first, first + count):
            case = random_case(seed, number, Path(folder))
            yield case, check(case)
