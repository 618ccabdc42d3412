"""How many ops a second the cost model times: unequal stages, every t_comm apart, memory
tracked."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..recording import record
from .measure import measure

HERE = Path(__file__).parent
TARGET_OPS, TARGET_MS = 40e6, 1.0


def main(arguments: list[str]) -> int:
    """Measures, prints and records; 1 where the target is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulator", description=__doc__)
    parser.add_argument("--repeats", type=int, default=301, help="runs, of which the median counts")
    options = parser.parse_args(arguments)
    result = measure(repeats=options.repeats)
    met = result["ops_per_second"] >= TARGET_OPS and result["median_ms"] < TARGET_MS
    print(
        f"{result['ops']:,} ops: median {result['median_ms']:.3f} ms, best {result['best_ms']:.3f} "
        "ms, "
        f"{result['ops_per_second'] / 1e6:.1f} million ops/s; whole simulate() "
        f"{result['simulate_ms']:.2f} ms"
    )
    print(
        f"target {TARGET_OPS / 1e6:g} million ops/s, under {TARGET_MS:g} ms: "
        f"{'met' if met else 'MISSED'}"
    )
    print(f"recorded in {record(HERE, 'simulator', {**result, 'target_met': met})}")
    return 0 if met else 1
