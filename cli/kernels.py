"""Whether the first use on a machine will keep its user waiting: kernels are compiled then."""

from __future__ import annotations

import sys
from pathlib import Path


def announce_compiling() -> None:
    """Says on standard error that kernels are compiled, where the simulator's is not there yet."""
    from pipeloom.ir import simulate

    stats = getattr(simulate.run_kernel, "stats", None)  # None where numba is switched off
    if stats is None or stats.cache_path is None:
        return
    written = Path(simulate.__file__).stat().st_mtime
    kept = Path(stats.cache_path).glob("simulate.run_kernel-*.nbi")
    if not any(index.stat().st_mtime >= written for index in kept):
        print(
            "pipeloom: compiling kernels, once on this machine: some seconds",
            file=sys.stderr,
            flush=True,
        )
