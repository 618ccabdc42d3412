"""Counts how many small faults in a folder its tests find (mutation testing).

Usage: ``python -m tools.mutants ROOM TESTS... [--count 20] [--seed 0] [--seconds 60]``, for example
``python -m tools.mutants ir/cost tests/property/ir tests/conformance``. A mutant is one changed
operator, comparison, constant or condition in a copy of the tree. It is killed if pytest fails or
takes longer than ``--seconds``; without a mutant, the tests must pass in half of that time.
Kernels, which numba caches, and lines that only raise or describe are not changed. Survivors are
listed; some of them do not change the behavior.

``--other TREE TESTS...`` compares two test suites: mutants are drawn from those that both trees
have, and each is tested with the tests of its tree.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
QUIET = (ast.Raise, ast.Assert, ast.ImportFrom, ast.Import, ast.AnnAssign, ast.JoinedStr)


@dataclass(frozen=True)
class Mutant:
    """A change of one file: the text of the expression ``node`` is replaced by ``new``."""

    path: Path
    node: ast.expr
    new: str
    place: str
    """The names of the class and function that contain the expression, and a number that
    distinguishes equal texts there."""

    @property
    def key(self) -> tuple[Path, str, str, str]:
        """A key that is equal to that of the same mutant in another tree."""
        return self.path, self.place, ast.unparse(self.node), self.new

    def __str__(self) -> str:
        return f"{self.path}:{self.node.lineno}: {ast.unparse(self.node)} -> {self.new}"

    def write(self, tree: Path) -> None:
        """Write the changed file into ``tree``, a copy of the checkout."""
        lines = (tree / self.path).read_bytes().splitlines(keepends=True)
        first, last = self.node.lineno - 1, (self.node.end_lineno or self.node.lineno) - 1
        before = lines[first][: self.node.col_offset]
        after = lines[last][self.node.end_col_offset :]
        lines[first : last + 1] = [before + f"({self.new})".encode() + after]
        (tree / self.path).write_bytes(b"".join(lines))


def is_kernel(node: ast.AST) -> bool:
    decorators = getattr(node, "decorator_list", [])
    return any("kernel" in ast.unparse(each) for each in decorators)


def expressions(node: ast.AST, place: str = "") -> Iterator[tuple[str, ast.expr]]:
    """Yield the expressions below ``node`` that may be changed, each as a pair: ``place`` followed
    by the names of its class and function, and the expression."""
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, QUIET) or is_kernel(child)):
            if isinstance(child, ast.expr):
                yield place, child
            name = getattr(child, "name", None) if isinstance(child, ast.stmt) else None
            yield from expressions(child, f"{place}.{name}" if name else place)


def changed(node: ast.expr) -> str | None:
    """The text of an expression after the change, or None if this kind of expression is not
    changed."""
    copy = deepcopy(node)
    match copy:
        case ast.BinOp() | ast.BoolOp() if type(copy.op) in OPERATORS:
            copy.op = OPERATORS[type(copy.op)]()  # type: ignore[assignment]
        case ast.Compare() if type(copy.ops[0]) in OPERATORS:
            copy.ops[0] = OPERATORS[type(copy.ops[0])]()  # type: ignore[call-overload]
        case ast.UnaryOp(op=ast.Not()):
            copy = copy.operand
        case ast.IfExp():
            copy.body, copy.orelse = copy.orelse, copy.body
        case ast.Constant(value=bool(value)):
            copy.value = not value
        case ast.Constant(value=int(value) | float(value)):
            copy.value = value + 1
        case _:
            return None
    return ast.unparse(copy)


def mutants(tree: Path, room: str) -> list[Mutant]:
    """All mutants of the files in the folder ``room`` of a tree."""
    found = []
    for path in sorted((tree / room).rglob("*.py")):
        counts = Counter[tuple[str, str]]()
        for place, node in expressions(ast.parse(path.read_text())):
            if (new := changed(node)) is not None:
                text = place, ast.unparse(node)
                counts[text] += 1
                where = f"{place} {counts[text]}"
                found.append(Mutant(path.relative_to(tree), node, new, where))
    return found


def common(trees: Sequence[Path], room: str) -> list[tuple[Mutant, ...]]:
    """The mutants that all trees have, as tuples with one mutant per tree: in the same file, class
    and function, with the same text."""
    found = [{mutant.key: mutant for mutant in mutants(tree, room)} for tree in trees]
    return [tuple(one[key] for one in found) for key in found[0] if all(key in o for o in found)]


@dataclass(frozen=True)
class Suite:
    """The tests of a checkout, and a copy of that checkout in which they run.

    ``source``: the checkout. ``tests``: paths for pytest. ``tree``: the folder of the copy.
    """

    source: Path
    tests: Sequence[str]
    tree: Path

    def failed(self, seconds: float) -> bool:
        """Whether the tests fail or take longer than ``seconds``."""
        words = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *self.tests]
        environment = os.environ | {"PYTHONPATH": f"{self.tree / 'src'}:{self.tree}"}
        with subprocess.Popen(
            words,
            cwd=self.tree,
            env=environment,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return True
        return code != 0

    def finds(self, mutant: Mutant, seconds: float) -> bool:
        """Whether the tests find the mutant; if they do not, it is printed."""
        path = self.tree / mutant.path
        original = path.read_bytes()
        mutant.write(self.tree)
        try:
            found = self.failed(seconds)
        finally:
            path.write_bytes(original)
        if not found:
            print(f"survived {self.source.name}: {mutant}", flush=True)
        return found

    def copy(self, seconds: float) -> bool:
        """Copy the checkout to ``tree``. Returns whether its unchanged tests pass in half of
        ``seconds``."""
        ignored = shutil.ignore_patterns(".*")
        shutil.copytree(self.source, self.tree, symlinks=True, ignore=ignored)
        warm = not self.failed(10 * seconds)  # also compiles kernels
        return warm and not self.failed(seconds / 2)


def main() -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("room")
    parser.add_argument("tests", nargs="+")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--other", nargs="+", metavar=("TREE", "TESTS"), help="another checkout")
    args = parser.parse_args()
    given = [(ROOT, args.tests)]
    if args.other:
        given.append((Path(args.other[0]), args.other[1:]))
    with tempfile.TemporaryDirectory() as folder:
        suites = [Suite(*each, Path(folder) / f"tree{n}") for n, each in enumerate(given)]
        for suite in suites:
            if not suite.copy(args.seconds):
                print(f"{suite.source}: the tests fail, or take too long, as they are")
                return 2
        alike = common([suite.tree for suite in suites], args.room)
        drawn = random.Random(args.seed).sample(alike, args.count)
        found = [
            [suite.finds(mutant, args.seconds) for suite, mutant in zip(suites, each, strict=True)]
            for each in drawn
        ]
    for number, suite in enumerate(suites):
        count = sum(finds[number] for finds in found)
        print(f"{suite.source.name}: {args.room}: {count} of {len(drawn)} killed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
