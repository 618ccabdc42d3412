"""Repeats one case of parity, or trains many drawn ones: ``python -m tests.parity --help``.

With ``PARITY_DEVICE=cuda`` in the environment both trainings compute on a GPU, which ranks share.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

import torch

from tests.support.recorded import parser_of

from .cases import Case
from .checking import checked, shrunk


def main(arguments: list[str]) -> int:
    """Checks and prints; 1 where anything is at fault."""
    options = _options(arguments)
    torch.set_num_threads(1)
    numbers = range(options.first, options.first + options.count)
    cases = [Case.drawn(options.seed, number) for number in numbers]
    if options.case:
        cases = [Case.read(options.case)]
    done, lines = Counter[str](), Counter[str]()
    for case, outcome in checked(cases):
        if outcome.faults and options.shrink:
            case, outcome = shrunk(case, outcome)  # noqa: PLW2901
        for line in outcome.faults:
            print(f'"{case}": {line}', flush=True)
        line = outcome.unmade or outcome.refused or "trained"
        kind = "unmade" if outcome.unmade else "refused" if outcome.refused else "trained"
        done["at fault" if outcome.faults else kind] += 1
        lines[f"{kind}: {_numberless(line)}"] += kind != "trained"
        if options.verbose:
            print(f'"{case}": {line}', flush=True)
    print(*(f"{times:5} x {line}" for line, times in lines.most_common() if times), sep="\n")
    print(", ".join(f"{times} {kind}" for kind, times in done.items()))
    return int(done["at fault"] > 0 or not done["trained"])


def _numberless(line: str) -> str:
    return "".join("#" if letter.isdigit() else letter for letter in line)[:200]


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = parser_of("tests.parity", __doc__, 500)
    parser.add_argument("case", nargs="?", help="the words of one case, as a failure prints them")
    parser.add_argument("--first", type=int, default=0, help="the first case of the seed")
    parser.add_argument("--shrink", action="store_true", help="find the fewest choices at fault")
    parser.add_argument("--verbose", action="store_true", help="print the outcome of each case")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
