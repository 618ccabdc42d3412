"""How early to post receives: what buffers cost against what late ranks lose."""

from __future__ import annotations

import argparse

from .study import DRAWS, MICROBATCHES, RANKS, VARIATION, table


def main(arguments: list[str]) -> int:
    """Runs the study and prints its table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.receives", description=__doc__)
    parser.parse_args(arguments)
    print(
        f"{RANKS} ranks, {MICROBATCHES} microbatches, op times +-{VARIATION:.0%}, {DRAWS} draws\n"
    )
    print("\n".join(table()))
    return 0
