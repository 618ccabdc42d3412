"""Runs the snippets of pages: ``python docs/tools/snippets.py PAGE...``

Each page runs in a new folder that contains only the folder ``examples``. Blocks run in the order
of the page. A block with ``title="NAME"`` is written to that file, Python blocks share one
namespace, and lines of console blocks that begin with ``$`` run in a shell. A block after the
comment ``<!-- needs torch -->`` or ``<!-- not run: REASON -->`` is skipped. The first failure ends
the program.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"^(?P<skip><!-- (?:needs torch|not run:.*?) -->\n+)?```(?P<kind>\w*)(?P<options>[^\n]*)\n"
    r"(?P<text>.*?)^```$",
    flags=re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Snippet:
    """A fenced block of a page: its language, its file (or None), its text and its line."""

    kind: str
    file: str | None
    text: str
    line: int


def snippets(markdown: str) -> list[Snippet]:
    """Return the blocks of a page that are not skipped."""
    found = []
    for match in BLOCK.finditer(markdown):
        if match["skip"] is None:
            title = re.search(r'title="([^"]+)"', match["options"])
            line = markdown.count("\n", 0, match.start()) + 1
            found.append(Snippet(match["kind"], title and title[1], match["text"], line))
    return found


def try_page(page: Path) -> int:
    """Run all snippets of a page, and return their number."""
    names: dict[str, object] = {"__name__": "snippet"}
    tried = 0
    with TemporaryDirectory() as folder, chdir(folder):
        Path("examples").symlink_to(ROOT / "examples")
        for snippet in snippets(page.read_text()):
            tried += _try(snippet, names, f"{page}:{snippet.line}")
    return tried


def _try(snippet: Snippet, names: dict[str, object], where: str) -> int:
    if snippet.file is not None:
        Path(snippet.file).write_text(snippet.text)
    elif snippet.kind == "python":
        exec(compile(snippet.text, where, "exec"), names)
    elif snippet.kind == "console":
        for command in re.findall(r"^\$ (.*)$", snippet.text, flags=re.MULTILINE):
            _shell(command, where)
    else:
        return 0
    return 1


def _shell(command: str, where: str) -> None:
    tools = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        command, shell=True, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{where}: {command}\nexits with {done.returncode}\n{done.stderr}")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(f"{name}: {try_page(Path(name).resolve())} snippets run")
