"""The documentation matches commands, families, profiles, files and decisions."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pipeloom import dump_profile
from pipeloom.ir import parse_profile
from pipeloom.solver import FAMILIES
from tests.support.inner import COMMANDS

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = [*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
FILE = re.compile(r"`((?:\w+/)+\w+\.(?:py|md|json))`")
PATTERNS = ("x.py", "x_json.py", "x_document.py", "x.md")


def found(pattern: str, page: str) -> list[str]:
    return re.findall(pattern, (DOCS / page).read_text(), flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("page", "stages"),
    [("formats.md", 8), ("commands/README.md", 8), ("tutorials/slow-links.md", 4)],
)
def test_the_profiles_of_the_pages_can_be_read(page: str, stages: int) -> None:
    profile = parse_profile(json.loads(found(r"```json[^\n]*\n([^`]*)```", page)[0]), page)
    assert profile.num_stages == stages
    assert parse_profile(dump_profile(profile), "written") == profile


def test_commands_and_families_are_those_of_the_pages() -> None:
    pages = {page.stem for page in (DOCS / "commands").glob("*.md")}
    assert pages == {"README", *COMMANDS}
    rows = found(r"^\| `([a-z0-9-]+)(?::[A-Z])?` \|", "families.md")
    assert sorted(rows) == sorted(FAMILIES)


def test_the_files_that_pages_name_exist() -> None:
    """Files of the repository, excluding files that readers create and patterns such as
    ``x.py``."""
    named = {(page.name, path) for page in PAGES for path in FILE.findall(page.read_text())}
    ours = {each for each in named if (ROOT / Path(each[1]).parts[0]).is_dir()}
    absent = {(page, path) for page, path in ours if not (ROOT / path).is_file()}
    assert len(ours) > 20
    assert {each for each in absent if Path(each[1]).name not in PATTERNS} == set()


def test_decisions_have_a_number_each_and_are_all_listed() -> None:
    notes = sorted(path.name for path in (DOCS / "decisions").glob("0*.md"))
    assert len({name[:4] for name in notes}) == len(notes)
    assert found(r"\]\((0[^)]*)\)", "decisions/README.md") == notes
    titles = [(DOCS / "decisions" / name).read_text().split(":")[0] for name in notes]
    assert titles == [f"# {name[:4]}" for name in notes]
