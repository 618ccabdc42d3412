"""The workflows of GitHub run targets of the Makefile, with actions of a fixed major version."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
TARGETS = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)


@pytest.mark.parametrize("name", ["lint", "tests", "wheels", "docs"])
def test_workflows_run_targets_that_exist(name: str) -> None:
    jobs = yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text())["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    made = [step["run"].split()[1] for step in steps if step.get("run", "").startswith("make ")]
    assert made
    assert {*made} <= {*TARGETS}
    assert all(re.search(r"@(release/)?v\d+$", step["uses"]) for step in steps if "uses" in step)
