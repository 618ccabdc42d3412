"""``profile --from``: a profile of ops that were measured elsewhere, without torch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command_line import Command


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "timers.csv"
    path.write_text("stage,microbatch,F,BW\n0,0,1,8\n1,0,2,8\n")
    return path


def test_a_table_becomes_a_profile_that_other_commands_take(
    pipeloom: Command, table: Path, tmp_path: Path
) -> None:
    output = tmp_path / "profile.json"
    words = ("--split", 0.75, "--memory", "2G,1G", "--t-comm", 0.5, "--name", "timed")
    done = pipeloom("profile", "--from", table, *words, "--memory-limit", "8G", "-o", output)
    assert (done.code, "stage 1  2 ms" in done.out) == (0, True)
    document = json.loads(output.read_text())
    stage = {"t_f": 1.0, "t_b": 6.0, "t_w": 2.0, "m_b": 2e9, "m_w": 1e9}
    assert document["stages"][0] == stage
    assert (document["name"], document["ranks"], document["t_comm"]) == ("timed", 2, 0.5)
    assert document["memory_limit"] == 8e9
    assert pipeloom("build", "1f1b", output, "-m", 2).code == 0
    answer = pipeloom("profile", "--from", table, "--like", output, "--json", "-o", output).json
    assert answer["measured"]["stages"][1]["t_bw"] == {"median": 8.0, "spread": 0.0, "samples": 1}
    assert json.loads(output.read_text())["stages"][0] == stage
