"""The weight-passing families beside what is published: bubbles, bytes, throughput and memory."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..recording import record
from . import published
from .bubbles import measure
from .sent import counts
from .table import render, render_counts

HERE = Path(__file__).parent


def main(arguments: list[str]) -> int:
    """Both parts, or one; 1 where equal times do not give the formula or too little is predicted."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.weipipe", description=__doc__)
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument("--bubbles", action="store_true", help="bubbles and bytes alone")
    parts.add_argument("--published", action="store_true", help="throughput and memory alone")
    given = parser.parse_args(arguments)
    failed = 0 if given.published else _bubbles()
    return failed if given.bubbles else max(failed, published.run(HERE))


def _bubbles() -> int:
    rows, sent = measure(), counts()
    print(f"{render(rows)}\n\n{render_counts(sent)}")
    print(f"recorded in {record(HERE, 'weipipe', {'rows': rows, 'sent': sent})}")
    wrong = [row for row in rows if row["equal"] and not row["as_formula"]]
    return 1 if wrong else 0
