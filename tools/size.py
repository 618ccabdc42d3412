"""Prints code lines of each folder, words of the pages and the number of tests that import private
names, as a table against the budgets.

Usage: ``python -m tools.size [--files N] [FOLDER ...]``; exit code 1 if a budget is exceeded.

A code line is not blank, not a comment and not part of a docstring. The budgets are in
``[tool.pipeloom.budgets]`` of ``pyproject.toml``; folders that are not named there have none.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IGNORED = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
PRIVATE = re.compile(r"^\s*(from|import) pipeloom\.\w+\.\w", re.MULTILINE)
"""An import from a module inside a top folder of the library (room), not of its public names."""
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(source: str) -> int:
    """The number of lines of ``source`` that contain code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in IGNORED:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstring_lines(source))


def docstring_lines(source: str) -> set[int]:
    """The numbers of the lines of docstrings: strings at the start of a body or after an
    assignment."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED):
            for earlier, statement in zip([None, *node.body], node.body, strict=False):
                if is_string(statement) and _documents(earlier):
                    assert statement.end_lineno is not None
                    lines.update(range(statement.lineno, statement.end_lineno + 1))
    return lines


def is_string(statement: object) -> bool:
    """Whether a statement consists of a string only, as docstrings do."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _documents(earlier: ast.stmt | None) -> bool:
    return earlier is None or isinstance(earlier, ast.Assign | ast.AnnAssign)


def words(text: str) -> int:
    """The number of words of a page, without code blocks and without parts generated from
    records."""
    written = r"<!-- (?:rows|claims)\b.*?<!-- end -->"
    prose = re.sub(written, "", text, flags=re.DOTALL).split("```")[::2]
    return sum(len(part.split()) for part in prose)


def tracked(folder: str, ending: str) -> list[Path]:
    """The files below ``folder`` whose names end in ``ending`` and that git tracks or would add,
    sorted, without symbolic links."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "--", folder],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    paths = (ROOT / name for name in sorted(listed) if name.endswith(ending))
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def room_files(folders: Iterable[str], ending: str) -> list[Path]:
    return [path for folder in folders for path in tracked(folder, ending)]


@cache
def measured(path: Path) -> int:
    """The number of code lines of a Python file, or the number of words of a page."""
    text = path.read_text(encoding="utf-8")
    return code_lines(text) if path.suffix == ".py" else words(text)


def imports_private(path: Path) -> bool:
    """Whether a Python file imports from a module inside a top folder of the library.

    False if it imports only public names.
    """
    return PRIVATE.search(path.read_text(encoding="utf-8")) is not None


def rows(budgets: dict[str, dict[str, object]]) -> list[tuple[str, int, int, str]]:
    """Each budget as (name, current size, budget, unit)."""
    found = []
    for name, budget in budgets.items():
        folders, most = budget["of"], budget["most"]
        assert isinstance(folders, list)
        assert isinstance(most, int)
        unit = str(budget.get("unit", "lines"))
        files = room_files(folders, ".md" if unit == "words" else ".py")
        without = budget.get("without", [])
        assert isinstance(without, list)
        kept = [path for path in files if not _within(path, without)]
        size = sum(map(imports_private if unit == "files" else measured, kept))
        found.append((name, size, most, unit))
    return found


def _within(path: Path, folders: Sequence[str]) -> bool:
    return any(path.is_relative_to(ROOT / folder) for folder in folders)


def main(arguments: list[str]) -> int:
    """Print the table of budgets, or the files of the given folders by size.

    Returns the exit code: 1 if a budget is exceeded.
    """
    parser = argparse.ArgumentParser(prog="python -m tools.size", description=__doc__)
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help="list these folders' files")
    parser.add_argument("--files", type=int, default=20, metavar="N", help="at most so many files")
    options = parser.parse_args(arguments)
    if options.folders:
        sizes = sorted(((measured(p), p) for p in room_files(options.folders, ".py")), reverse=True)
        for size, path in sizes[: options.files]:
            print(f"{size:7,}  {path.relative_to(ROOT)}")
        print(f"{sum(size for size, _ in sizes):7,}  in {len(sizes)} files")
        return 0
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    table = rows(project["tool"]["pipeloom"]["budgets"])
    print(f"{'room':24} {'size':>8} {'budget':>8}")
    for name, size, most, unit in table:
        print(f"{name:24} {size:8,} {most:8,} {unit}{'  EXCEEDED' if size > most else ''}")
    return int(any(size > most for _, size, most, _ in table))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
