"""The words of the code: no class name for two things, docstrings that are sentences."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIBRARY = ("ir", "solver", "compiler", "planner", "cli", "report", "runtime", "web", "src/pipeloom")
DOCUMENTED = (*LIBRARY, "benchmarks", "examples")
FILE_WORDS = {"ir/model/schedule.py"}  # names of bounds in older files
Definition = ast.Module | ast.ClassDef | ast.FunctionDef
FRAGMENT = re.compile(r"(What|Of|Those|That|Where|So|As)\b")
UNUSUAL = re.compile(
    r"\bbeside\b|(?<!-)\balone\b|\b(is|are) told\b|\bare no [a-z]+s\b|\bnone for\b", re.IGNORECASE
)
FORMER = re.compile(r"travel|lanes?\b|levers?\b|\brac(e|es|ing)\b|desk|sketch|urgen", re.IGNORECASE)


@cache
def definitions(folder: str) -> list[tuple[Path, Definition]]:
    """The modules, classes and functions of a folder, with their files."""
    return [
        (path.relative_to(ROOT), node)
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, Definition)
    ]


def test_no_class_name_means_two_things() -> None:
    found: defaultdict[str, list[Path]] = defaultdict(list)
    for folder in LIBRARY:
        for path, node in definitions(folder):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(path)
    twice = {name: list(map(str, paths)) for name, paths in found.items() if len(paths) > 1}
    assert twice == {}


@pytest.mark.parametrize("folder", DOCUMENTED)
def test_docstrings_are_no_fragments(folder: str) -> None:
    begins = [
        (str(path), text.partition("\n")[0])
        for path, node in definitions(folder)
        if (text := ast.get_docstring(node))
    ]
    assert begins
    assert [each for each in begins if FRAGMENT.match(each[1])] == []


@pytest.mark.parametrize("folder", DOCUMENTED)
def test_words_that_gave_way_to_the_fields_are_gone(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert former([path for path in files if str(path.relative_to(ROOT)) not in FILE_WORDS]) == []


def test_pages_use_the_usual_words() -> None:
    places = "*.md", "docs/**/*.md", "benchmarks/*/README.md"
    pages = [page for place in places for page in sorted(ROOT.glob(place))]
    assert len(pages) > 50
    assert former(pages, UNUSUAL) == former(pages) == []


def former(files: Sequence[Path], words: re.Pattern[str] = FORMER) -> list[str]:
    """The occurrences of ``words`` in files, as texts."""
    return [f"{path}: {word[0]}" for path in files for word in words.finditer(path.read_text())]
