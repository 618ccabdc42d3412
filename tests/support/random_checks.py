"""A command that checks random problems one seed after the other, prints faults and records."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from tests.support.recorded import record
from tests.support.spreading import add_workers, spread

EVERY_SECONDS = 30.0


@dataclass(frozen=True)
class RandomCheck:
    """``python -m NAME``. ``check(seed, work_limit)`` is a result, ``faults(result)`` its lines.

    ``count``: of a whole run, which is recorded with its ``summary``. ``work_limit``: in millions
    of simulated ops a solve.
    """

    name: str
    folder: Path
    count: int
    work_limit: float
    first: Callable[[], int]
    check: Callable[[int, float], Any]
    faults: Callable[[Any], list[str]]
    summary: Callable[[list[Any]], dict[str, Any]]

    def main(self, arguments: list[str]) -> int:
        """1 where anything is wrong."""
        options = self._options(arguments)
        print(f"--seed {options.seed} --count {options.count}", flush=True)
        began = told = perf_counter()
        found, wrong = [], 0
        seeds = range(options.seed, options.seed + options.count)
        for _, one in spread(options, partial(self.check, work_limit=options.work_limit), seeds):
            found.append(one)
            wrong += len(self.faults(one))
            print("".join(f"{line}\n" for line in self.faults(one)), end="", flush=True)
            if perf_counter() - told > EVERY_SECONDS:
                told = perf_counter()
                print(f"{len(found)} of {len(seeds)}, {told - began:.0f} s", flush=True)
        result = {key: getattr(options, key) for key in ("seed", "count", "work_limit")}
        result |= self.summary(found) | {"seconds": round(perf_counter() - began, 1)}
        print("\n".join(f"{key}: {value}" for key, value in result.items()))
        if options.count >= self.count:
            print(f"recorded in {record(self.folder, result)}")
        return int(wrong > 0)

    def _options(self, arguments: list[str]) -> argparse.Namespace:
        parser = argparse.ArgumentParser(prog=f"python -m {self.name}")
        add = partial(parser.add_argument, type=int)
        add("--seed", default=self.first(), help="of the first problem")
        add("--count", default=self.count, help="seeds; a run of fewer is not recorded")
        add("--work-limit", type=float, default=self.work_limit, help="millions of ops a solve")
        add_workers(parser)
        return parser.parse_args(arguments)
