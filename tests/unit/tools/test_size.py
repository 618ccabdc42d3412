"""The size table counts code, and fails when a room exceeds its budget."""

from __future__ import annotations

import pytest

from tools import size

SOURCE = '''"""A docstring

of three lines."""
import os  # a comment beside code counts as code

# a comment
TEXT = """a string
that is a value"""
"""Documents TEXT."""
def both(
    a: int,
) -> str:
    """One line."""
    print("not a docstring")
    "a string expression after a call"
    return TEXT + str(a)
'''


def test_code_lines_are_neither_blank_nor_comments_nor_docstrings() -> None:
    # import, the two of TEXT, the three of the signature, print, the string and return
    assert size.code_lines(SOURCE) == 9


def test_imports_from_inside_a_room_are_counted() -> None:
    assert size.PRIVATE.search("import ast\n    from pipeloom.ir.cost import simulator")
    assert not size.PRIVATE.search("from pipeloom.ir import simulate")


def test_a_room_above_its_budget_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = {"tools": {"of": ["tools"], "most": 1}}
    monkeypatch.setattr(size.tomllib, "loads", lambda _: {"tool": {"pipeloom": {"budgets": here}}})
    assert size.main([]) == 1
    assert "EXCEEDED" in capsys.readouterr().out
