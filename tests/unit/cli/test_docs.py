"""The pages about formats and commands say what is there."""

from __future__ import annotations

import json
import re
from pathlib import Path

from pipeloom.cli.main import COMMANDS
from pipeloom.ir.formats import dump_profile, parse_profile
from pipeloom.solver.families import FAMILIES

DOCS = Path(__file__).parents[3] / "docs"


def json_blocks(page: str) -> list[str]:
    return re.findall(r"```json\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)


def test_every_command_has_a_section() -> None:
    headings = re.findall(r"^## (.*)$", (DOCS / "commands.md").read_text(), flags=re.MULTILINE)
    assert sorted(", ".join(headings).split(", ")) == sorted(COMMANDS)


def test_the_profiles_of_the_pages_can_be_read() -> None:
    for page in ("formats.md", "commands.md"):
        profile = parse_profile(json.loads(json_blocks(page)[0]), page)
        assert profile.num_stages == 8
        assert parse_profile(dump_profile(profile), "written") == profile


def test_the_page_of_commands_names_the_families() -> None:
    page = (DOCS / "commands.md").read_text()
    assert [name for name in FAMILIES if name not in page] == []
