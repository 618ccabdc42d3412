"""How many small faults, made in a room from a seed, its tests find.

Usage: ``python -m tools.mutants ROOM TESTS... [--count 20] [--seed 0] [--seconds 60]``,
for example ``python -m tools.mutants ir/cost tests/property/ir tests/conformance``. Each mutant is
one changed operator, comparison, constant or condition in a copy of the tree. It is killed if
pytest fails or takes longer than ``--seconds``. Kernels, which numba keeps compiled, and lines that
only raise or describe are left alone. Survivors are listed; some of them change nothing.
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
    """``new`` takes the place of a node's text."""

    path: Path
    node: ast.expr
    new: str

    def __str__(self) -> str:
        return f"{self.path}:{self.node.lineno}: {ast.unparse(self.node)} -> {self.new}"

    def write(self, tree: Path) -> None:
        """Writes the changed file into the tree."""
        lines = (tree / self.path).read_bytes().splitlines(keepends=True)
        first, last = self.node.lineno - 1, (self.node.end_lineno or self.node.lineno) - 1
        before = lines[first][: self.node.col_offset]
        after = lines[last][self.node.end_col_offset :]
        lines[first : last + 1] = [before + f"({self.new})".encode() + after]
        (tree / self.path).write_bytes(b"".join(lines))


def is_kernel(node: ast.AST) -> bool:
    decorators = getattr(node, "decorator_list", [])
    return any("kernel" in ast.unparse(each) for each in decorators)


def expressions(node: ast.AST) -> Iterator[ast.expr]:
    """Those that may be changed below a node."""
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, QUIET) or is_kernel(child)):
            if isinstance(child, ast.expr):
                yield child
            yield from expressions(child)


def changed(node: ast.expr) -> str | None:
    """Other text for an expression, or None where there is none."""
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
    """All of a room's files."""
    found = []
    for path in sorted((tree / room).rglob("*.py")):
        for node in expressions(ast.parse(path.read_text())):
            if (new := changed(node)) is not None:
                found.append(Mutant(path.relative_to(tree), node, new))
    return found


def killed(tree: Path, tests: Sequence[str], seconds: float) -> bool:
    """Whether the tests fail, or take too long."""
    words = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONPATH": f"{tree / 'src'}:{tree}"}
    with subprocess.Popen(
        words,
        cwd=tree,
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


def main() -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("room")
    parser.add_argument("tests", nargs="+")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--tree", type=Path, default=ROOT, help="another checkout")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(args.tree, tree, symlinks=True, ignore=shutil.ignore_patterns(".*"))
        if killed(tree, args.tests, 10 * args.seconds):
            print("the tests fail as they are")
            return 2
        drawn = random.Random(args.seed).sample(mutants(tree, args.room), args.count)
        survivors = []
        for mutant in drawn:
            original = (tree / mutant.path).read_bytes()
            mutant.write(tree)
            if not killed(tree, args.tests, args.seconds):
                survivors.append(mutant)
                print(f"survived  {mutant}", flush=True)
            (tree / mutant.path).write_bytes(original)
    print(f"{args.room}: {len(drawn) - len(survivors)} of {len(drawn)} killed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
