"""The memory frontier, certified: how good the schedules are, and how good they are known to be."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

from ..spreading import add_workers, spread
from .instances import SETS, Instance
from .picture import picture
from .results import Cells, load, run_cell, save, settings, stands
from .table import heading, render, row, widest
from .targets import checks, summarize

HERE = Path(__file__).parent


def main(arguments: list[str]) -> int:
    """Measures, records and prints what is asked for; 1 where a target is missed."""
    options = _options(arguments)
    if options.picture:
        return _draw(options.row or ["6.2B-24"], options.picture)
    deadline = monotonic() + options.budget
    met = True
    for name in options.set or SETS:
        instances = [i for i in SETS[name]() if not options.row or i.row in options.row]
        instances = instances[:: options.every]
        if not instances:
            continue
        print(f"== {name}", flush=True)
        cells = (
            _recorded(name, instances)
            if options.report
            else _measured(name, instances, options, deadline)
        )
        if options.widest:
            print(f"\nwidest gaps\n{widest(cells, options.widest)}\n")
        met &= _judge(name, cells, len(instances))
    return 0 if met else 1


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.frontier", description=__doc__)
    parser.add_argument("--set", action="append", choices=list(SETS), help="all by default")
    parser.add_argument(
        "--row", action="append", help="a row of table 5 (6.2B-24) or a kind of instance"
    )
    parser.add_argument("--every", type=int, default=1, help="every Nth instance alone")
    parser.add_argument(
        "--time-limit", type=float, help="seconds for each solve; the target's by default"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--budget", type=float, default=float("inf"), help="begin no cell after so many seconds"
    )
    parser.add_argument("--report", action="store_true", help="what is recorded; nothing is run")
    parser.add_argument(
        "--widest", type=int, default=0, metavar="N", help="list the N widest gaps of each set"
    )
    parser.add_argument("--picture", metavar="FILE", help="draw the recorded frontier of --row")
    add_workers(parser)
    return parser.parse_args(arguments)


def _draw(rows: list[str], file: str) -> int:
    cells = [cell for name in ("below", "table5") for cell in load(HERE, name).values()]
    Path(file).write_text(picture(rows[0], cells), encoding="utf-8")
    print(f"written to {file}")
    return 0


def _recorded(name: str, instances: Sequence[Instance]) -> Cells:
    cells = load(HERE, name)
    known = {i.name: cells[i.name] for i in instances if i.name in cells}
    print(render(known), flush=True)
    return known


def _measured(
    name: str, instances: Sequence[Instance], options: argparse.Namespace, deadline: float
) -> Cells:
    """Each instance's cell, recorded at once; one that was measured alike before is kept."""
    print("\n".join(heading()), flush=True)
    cells, measure = load(HERE, name), []
    for instance in instances:
        wanted = settings(instance, options.time_limit, options.seed)
        if not stands(cells.get(instance.name), wanted):
            measure.append((name, instance, wanted))
        else:
            print(row(instance.name, cells[instance.name]), flush=True)
    left = {instance.name for _, instance, _ in measure}
    for (_, instance, _), cell in spread(
        options, run_cell, measure, lambda: monotonic() > deadline
    ):
        cells[instance.name] = cell
        left.remove(instance.name)
        save(HERE, name, cells)
        print(row(instance.name, cell), flush=True)
    return {i.name: cells[i.name] for i in instances if i.name not in left}


def _judge(name: str, cells: Cells, of: int) -> bool:
    print(summarize(cells))
    if len(cells) < of:
        print(f"{of - len(cells)} of {of} cells are not measured yet")
    found = checks(name, cells)
    for words, met in found:
        print(f"{'met   ' if met else 'MISSED'}  {words}")
    print(flush=True)
    return all(met for _, met in found)
