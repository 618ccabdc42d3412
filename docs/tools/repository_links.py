"""Links from pages to files of the repository.

Pages are written for the repository, in which ``../benchmarks/published/README.md`` is the page of
a benchmark. On the site, Markdown and Python files outside ``docs/`` become pages, and other files
are copied.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ALWAYS = (
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *sorted(file.relative_to(ROOT).as_posix() for file in ROOT.glob("benchmarks/*/README.md")),
)
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
FENCE = re.compile(r"^ *(```|~~~)")


def home(page: str) -> str:
    """Return the path in the repository of a page of the site."""
    if page.startswith("repository/"):
        return page.removeprefix("repository/").removesuffix(".py.md") + (
            ".py" if page.endswith(".py.md") else ""
        )
    return f"docs/{page}"


def place(path: str) -> str:
    """Return the path on the site of a file of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"repository/{path}.md" if path.endswith(".py") else f"repository/{path}"


def targets(page: str, markdown: str) -> list[str]:
    """Return the files of the repository to which a page links, as paths from the root."""
    found = []
    for line in _prose(markdown):
        for _, link, _ in LINK.findall(line):
            path = _target(page, link)
            if path is not None:
                found.append(path)
    return found


def with_site_links(page: str, markdown: str) -> str:
    """Return the page with its links changed to the paths on the site."""

    def moved(match: re.Match[str]) -> str:
        path = _target(page, match[2])
        if path is None:
            return match[0]
        relative = posixpath.relpath(place(path), posixpath.dirname(page) or ".")
        return f"{match[1]}{relative}{match[3]}"

    fenced, lines = False, []
    for line in markdown.split("\n"):
        fenced ^= FENCE.match(line) is not None
        lines.append(line if fenced else LINK.sub(moved, line))
    return "\n".join(lines)


def added(pages: dict[str, str]) -> dict[str, str | Path]:
    """Return the files that the site needs in addition to ``pages`` (path: text).

    These are :data:`ALWAYS` and all files to which pages link. The value is the text of a page, or
    the path of another file. Raises FileNotFoundError with the page's name if a linked file does
    not exist.
    """
    extra: dict[str, str | Path] = {place(path): _content(path) for path in ALWAYS}
    waiting = [*pages.items(), *((page, str(text)) for page, text in extra.items())]
    while waiting:
        page, markdown = waiting.pop()
        for path in targets(page, markdown):
            if path.startswith("docs/") or place(path) in extra:
                continue
            if not (ROOT / path).is_file():
                raise FileNotFoundError(f"{home(page)}: links to {path}, which does not exist")
            extra[place(path)] = content = _content(path)
            if isinstance(content, str):
                waiting.append((place(path), content))
    return extra


def _content(path: str) -> str | Path:
    file = ROOT / path
    if path.endswith(".md"):
        return file.read_text()
    if path.endswith(".py"):
        return f"# {path}\n\n```python\n{file.read_text()}```\n"
    return file


def _target(page: str, link: str) -> str | None:
    """Return the path from the root to which a link leads.

    None for links between pages of the site, and for links to other sites.
    """
    if ":" in link or link.startswith("/"):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(home(page)), link))
    within = page == path.removeprefix("docs/") or not page.startswith("repository/")
    return None if within and path.startswith("docs/") else path


def _prose(markdown: str) -> list[str]:
    fenced, lines = False, []
    for line in markdown.split("\n"):
        fenced ^= FENCE.match(line) is not None
        if not fenced:
            lines.append(line)
    return lines
