"""The ``pipeloom`` command: one file a subcommand, imported only when it is called."""

from __future__ import annotations


def main() -> int:
    raise SystemExit("pipeloom: no commands yet")
