"""Passing activations, weights or shards on a ring of network namespaces with one slow link."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

from pipeloom.ir.errors import InputError, PipeloomError

HERE = Path(__file__).parent


def main(arguments: list[str]) -> int:
    """Trains every configuration by every scheme, prints and records the table.

    1 where a prediction misses by more than 15 %, losses differ or auto does not pick the winner,
    2 where the ring cannot be made here.
    """
    from .configurations import CONFIGURATIONS

    names = [configuration.name for configuration in CONFIGURATIONS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slow_link", description=__doc__)
    some = f"some of {', '.join(names)}; of the others the record stays"
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=some)
    parser.add_argument(
        "--steps", type=int, default=6, help="of each run; the first two do not count"
    )
    parser.add_argument("--rounds", type=int, default=1, help="runs of each scheme")
    args = parser.parse_args(arguments)
    if args.steps < 4 or args.rounds < 1:
        parser.error("expected at least 4 steps and 1 round")
    signal.signal(signal.SIGTERM, _end)  # so that the namespaces are removed
    try:
        return _run(args, [c for c in CONFIGURATIONS if c.name in (args.only or names)])
    except PipeloomError as error:
        print(f"slow_link: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    except KeyboardInterrupt:
        print("slow_link: interrupted, the namespaces are removed", file=sys.stderr)
        return 130


def _run(args: argparse.Namespace, configurations: list[Any]) -> int:
    from ..recording import record
    from .experiment import Settings, faults, run
    from .network import need_tools
    from .table import render

    need_tools()
    results = []
    for configuration in configurations:
        print(f"{configuration.name} ...", file=sys.stderr, flush=True)
        results.append(run(configuration, Settings(steps=args.steps, rounds=args.rounds)))
        print(render(results[-1:]), flush=True)
    found = [fault for result in results for fault in faults(result)]
    for fault in found:
        print(fault)
    print(f"recorded in {record(HERE, 'slow_link', {'results': last_results(results)})}")
    return 1 if found else 0


def last_results(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last result of every configuration that there is: of ``results``, else as recorded."""
    from ..recording import recorded
    from .configurations import CONFIGURATIONS

    known = recorded(HERE, "slow_link").get("results", [])
    last = {result["name"]: result for result in (*known, *results)}
    return [last[c.name] for c in CONFIGURATIONS if c.name in last]


def _end(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt
