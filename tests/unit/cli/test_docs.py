"""The pages say what is there: commands, families, profiles, files and decisions."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pipeloom import dump_profile
from tests.support.inner import COMMANDS, FAMILIES, parse_profile

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md")
)
FILE = re.compile(r"`((?:\w+/)+\w+\.(?:py|md|json))`")


def json_blocks(page: str) -> list[str]:
    return re.findall(r"```json[^\n]*\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)


def test_every_command_has_a_section() -> None:
    headings = re.findall(r"^## (.*)$", (DOCS / "commands.md").read_text(), flags=re.MULTILINE)
    assert sorted(", ".join(headings).split(", ")) == sorted(COMMANDS)


@pytest.mark.parametrize(
    ("page", "stages"), [("formats.md", 8), ("commands.md", 8), ("tutorials/slow-links.md", 4)]
)
def test_the_profiles_of_the_pages_can_be_read(page: str, stages: int) -> None:
    profile = parse_profile(json.loads(json_blocks(page)[0]), page)
    assert profile.num_stages == stages
    assert parse_profile(dump_profile(profile), "written") == profile


def test_every_family_has_a_row_and_every_row_is_a_family() -> None:
    page = (DOCS / "families.md").read_text()
    rows = re.findall(r"^\| `([a-z0-9-]+)(?::[A-Z])?` \|", page, flags=re.MULTILINE)
    assert sorted(rows) == sorted(FAMILIES)


@pytest.mark.parametrize("page", PAGES)
def test_the_files_that_a_page_names_exist(page: str) -> None:
    named = set(FILE.findall((ROOT / page).read_text()))
    assert [path for path in sorted(named) if not _is_there(path)] == []


def _is_there(path: str) -> bool:
    """A file of the repository, one that a reader makes, or a pattern such as ``x.py``."""
    top, name = Path(path).parts[0], Path(path).name
    return (
        not (ROOT / top).is_dir()
        or name in ("x.py", "x_json.py", "x_document.py", "x.md")
        or (ROOT / path).is_file()
    )


def test_decisions_have_a_number_each_and_are_all_listed() -> None:
    notes = sorted(path.name for path in (DOCS / "decisions").glob("0*.md"))
    assert len({name[:4] for name in notes}) == len(notes)
    listed = re.findall(r"\]\((0[^)]*)\)", (DOCS / "decisions" / "README.md").read_text())
    assert listed == notes
    titles = [(DOCS / "decisions" / name).read_text().split(":")[0] for name in notes]
    assert titles == [f"# {name[:4]}" for name in notes]
