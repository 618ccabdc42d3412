"""Writes the answers of ``golden.txt`` anew: ``python -m tests.conformance.messages``."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from . import GOLDEN, answer, cases, written_anew


def main() -> None:
    text = GOLDEN.read_text(encoding="utf-8")
    found: dict[int, list[str]] = {}
    for number, case in enumerate(cases(text)):
        with TemporaryDirectory() as folder:
            found[number] = answer(case, Path(folder))
    GOLDEN.write_text(written_anew(text, found), encoding="utf-8")


if __name__ == "__main__":
    main()
