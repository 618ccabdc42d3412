"""``python -m benchmarks`` runs every experiment, ``python -m benchmarks.NAME`` one of them.

The frontier alone takes hours; here it gets half of one for each eighth instance of its sets. What
the optimizer answers is held against the record, which stays as it is.
"""

from __future__ import annotations

from importlib import import_module

OPTIONS = {"frontier": ["--every", "8", "--budget", "1800"], "answers": ["--check"]}
BENCHMARKS = (
    "simulator", "combinations", "table5", "table8", "formulas", "placements", "plans", "weipipe",
    "scaling", "remat", "partition", "packing", "receives",
    "runtime_overhead", "graphs", "port", "post_validation", "predict", "one_gpu", "slow_link",
    "gaps", "answers", "random_instances", "fuzz", "chaos", "small_exact", "unlike", "frontier",
)  # fmt: skip
"""Folders, each with ``main``, which takes the words of a command line and gives an exit code."""


def main() -> int:
    worst = 0
    for name in BENCHMARKS:
        print(f"== {name}", flush=True)
        run = import_module(f"benchmarks.{name}").main
        worst = max(worst, run(OPTIONS.get(name, [])))
    return worst


if __name__ == "__main__":
    raise SystemExit(main())
