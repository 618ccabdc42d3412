"""Robust schedules: their mean step against the plain optimum's, where op times vary.

``python -m benchmarks.robust`` solves twenty instances at two spreads with and without
``--robust``, with the same work, and costs both on samples that no search saw, the same for both;
it prints the tables of ``README.md`` and records them in ``results/robust.json``. ``--trace FILE``:
predicts also each step of Primus's traces from the others; without it their record stays. 1 where
a robust step is above a plain one, or 1 % below on less than a third of the instances at a spread,
or a measured step is outside of what is predicted.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from ..recording import record, recorded
from ..spreading import add_workers, spread
from .study import SEED_OF_INSTANCES, SPREADS, WORK, Case, failures, instances, solved, table
from .trace import left_out, outside, trace_table

HERE = Path(__file__).parent


def main(arguments: list[str]) -> int:
    """Runs the study, prints its tables and records them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.robust", description=__doc__)
    parser.add_argument("--trace", metavar="FILE", help="all ranks' trace of Primus")
    parser.add_argument("--count", type=int, default=20, help="instances, 20 by default")
    parser.add_argument("--seed", type=int, default=SEED_OF_INSTANCES, help="of the instances")
    add_workers(parser)
    options = parser.parse_args(arguments)
    given, rows = instances(options.count, options.seed), []
    with TemporaryDirectory() as cache:
        cases = [Case(each, by, cache) for by in SPREADS for each in given]
        for _, row in spread(options, solved, cases):
            rows.append(row)
            print(table([row])[-1], flush=True)
    known = recorded(HERE, "robust").get("trace", [])
    steps = known if options.trace is None else left_out(options.trace)
    wrong = [*failures(rows), *outside(steps)]
    print("\n".join(["", *table(rows), "", *trace_table(steps), "", *wrong]))
    if options.seed == SEED_OF_INSTANCES:
        result = {"work_limit": WORK, "rows": rows, "trace": steps}
        print(f"recorded in {record(HERE, 'robust', result).name}")
    return 1 if wrong else 0
