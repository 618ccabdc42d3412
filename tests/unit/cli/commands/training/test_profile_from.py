"""``profile --from``: a profile of ops that were measured elsewhere, without torch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command_line import Command, profile_document, written

TABLE = "stage,microbatch,F,BW\n0,0,1,8\n1,0,2,8\n"


def test_a_table_becomes_a_profile_that_optimize_takes(pipeloom: Command, tmp_path: Path) -> None:
    table, output = tmp_path / "timers.csv", tmp_path / "profile.json"
    table.write_text(TABLE)
    done = pipeloom(
        "profile", "--from", table, "--split", 0.75, "--memory", "2G,1G", "--t-comm", 0.5,
        "--name", "timed", "--memory-limit", "8G", "-o", output,
    )  # fmt: skip
    assert done.code == 0
    assert "stage 1  2 ms" in done.out
    document = json.loads(output.read_text())
    stage = {"t_f": 1.0, "t_b": 6.0, "t_w": 2.0, "m_b": 2e9, "m_w": 1e9}
    assert document["stages"][0] == stage
    assert (document["name"], document["ranks"], document["t_comm"]) == ("timed", 2, 0.5)
    assert pipeloom("optimize", output, "-m", 2, "-q", "-o", tmp_path / "s.json").code == 0
    answer = pipeloom("profile", "--from", table, "--like", output, "--json", "-o", output).json
    assert answer["measured"]["stages"][1]["t_bw"] == {"median": 8.0, "spread": 0.0, "samples": 1}
    assert json.loads(output.read_text())["stages"][0] == stage


@pytest.mark.parametrize(("step", "noted"), [(0.01, False), (0.5, True)])
def test_unsteady_times_are_noted(
    pipeloom: Command, tmp_path: Path, step: float, noted: bool
) -> None:
    ops = [(m, op) for m in range(8) for op in ("F", "B", "W")]
    rows = [f"0,{m},{op},{1 + step * m}" for m, op in ops]
    timers = tmp_path / "timers.csv"
    timers.write_text("\n".join(["stage,microbatch,op,ms", *rows]))
    words = ("--memory", "1.2G,0.9G", "--t-comm", 0, "-o", tmp_path / "profile.json")
    done = pipeloom("profile", "--from", timers, *words)
    assert done.code == 0
    assert ("note: times spread by up to" in done.out) == noted


def test_what_only_some_stages_have_is_left_empty_for_the_others(
    pipeloom: Command, tmp_path: Path
) -> None:
    table, like = tmp_path / "timers.csv", tmp_path / "like.json"
    table.write_text(TABLE)
    document = profile_document()
    document["stages"][1] |= {"t_r": 1.0, "m_r": 0.25}
    written(like, document)
    done = pipeloom("profile", "--from", table, "--like", like, "-o", tmp_path / "p.json")
    assert done.code == 0
    header, _, first, second = done.out.splitlines()[:4]
    assert "M_R" in header
    assert (first.split()[-1], second.split()[-1]) == ("0.5", "0.25")  # M_W and M_R


def test_limits_of_another_profile_that_limit_nothing_are_kept(
    pipeloom: Command, tmp_path: Path
) -> None:
    table, like = tmp_path / "timers.csv", tmp_path / "like.json"
    table.write_text(TABLE)
    written(like, profile_document(memory_limit=[None, None]))
    done = pipeloom("profile", "--from", table, "--like", like, "-o", tmp_path / "p.json")
    assert done.code == 0
    assert json.loads((tmp_path / "p.json").read_text())["memory_limit"] is None
    assert pipeloom("build", "1f1b", tmp_path / "p.json", "-m", 2).code == 0
