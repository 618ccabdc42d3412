"""Each case of ``golden.txt`` is answered as it says, and its files are left as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.messages import GOLDEN, Case, answer, cases, written_anew

TEXT = GOLDEN.read_text(encoding="utf-8")
CASES = list(cases(TEXT))


@pytest.mark.parametrize("case", CASES, ids=[case.line for case in CASES])
def test_messages(case: Case, tmp_path: Path) -> None:
    if "hf:" in case.line:
        pytest.importorskip("transformers")
    assert answer(case, tmp_path) == case.answer


def test_what_is_written_anew_is_the_same_where_nothing_has_changed() -> None:
    assert written_anew(TEXT, {n: case.answer for n, case in enumerate(CASES)}) == TEXT
