"""Training under faults: all ranks report each fault in time, and nothing is left behind or lost.

Four Gloo ranks train with their own network and disks, which needs root, and one or two faults are
injected in each start. Training resumes from the last checkpoint, and each loss must equal that of
an undisturbed run. Rank 0 serves the store of torch.distributed, which is the hardest case.
``record.json`` holds the last run of at least 200 faults.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections import Counter
from itertools import islice
from pathlib import Path
from time import monotonic

from tests.support.recorded import parser_of, record

from .apart import set_apart
from .faults import faults

HERE = Path(__file__).parent
COUNT = 200


def main(arguments: list[str]) -> int:
    """Inject faults into training, print and record the results; returns 1 if a promise was broken.

    Raises InputError if this process cannot have its own network and disks.
    """
    options = parser_of(__name__, __doc__, COUNT).parse_args(arguments)
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for inner in ("disk", "t"):
            (folder / inner).mkdir()
        os.environ["TMPDIR"] = str(folder / "t")  # for all processes started from now on
        with set_apart(folder / "disk"):
            broken, kinds, seconds = _disturbed(options.seed, options.count, folder)
    result = {"seed": options.seed, "faults": dict(kinds), "broken": broken}
    print(f"{result}, {seconds:.0f} s")
    if options.count >= COUNT:
        print(f"recorded in {record(HERE, result | {'seconds': seconds})}")
    return 1 if broken else 0


def _disturbed(seed: int, count: int, folder: Path) -> tuple[list[str], Counter[str], float]:
    """The broken promises with this number of faults, the number of faults of each kind, and the
    seconds."""
    began, kinds, broken = monotonic(), Counter[str](), list[str]()
    drawn = enumerate(islice(faults(random.Random(seed), folder), count))
    for number, (scheme, kind, told, found) in drawn:
        kinds[kind] += 1
        broken += [f"fault {number}, {scheme}, {kind} {told}: {line}" for line in found]
        print(f"fault {number}: {scheme}, {kind} {told}", *found, sep="\n  ", flush=True)
    return broken, kinds, monotonic() - began
