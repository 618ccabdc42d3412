"""``optimize --explain``: words for people, the same as JSON."""

from __future__ import annotations

from pathlib import Path

from tests.support.command_line import Command, profile_document, written


def test_explain_says_why_where_and_what_if(
    pipeloom: Command, profile: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    words = ["optimize", profile, "-m", 4, "--memory-limit", 1, "-q", "-o", out]
    words += ["--placement", "linear"]
    done = pipeloom(*words, "--time-limit", 1, "--explain")
    assert done.code == 0
    assert "why no schedule is below 20 ms" in done.out
    assert "before first B" in done.out
    assert "one more microbatch's M_B on every rank" in done.out
    assert "the bound falls until" in done.out
    assert "links" not in done.out.split("what would change")[1]


def test_explain_as_json_has_every_figure(pipeloom: Command, tmp_path: Path) -> None:
    profile = written(tmp_path / "slow.json", profile_document(t_comm=0.5))
    done = pipeloom(
        "optimize", profile, "-m", 3, "--memory-limit", 2, "--time-limit", 1, "--explain",
        "--json", "-q"
    )  # fmt: skip
    answer = done.json
    found = answer["explanation"]
    assert found["bound"]["value"] == answer["lower_bound"]
    assert [loss["rank"] for loss in found["losses"]] == [0, 1]
    for loss in found["losses"]:
        assert abs(sum(loss.values()) - loss["rank"] - answer["period"]) < 1e-6
    whats = [change["what"] for change in found["changes"]]
    assert whats[-3:-1] == ["links twice as fast", "links without delay"]
    assert all(change["bound"] <= change["cost"] + 1e-9 for change in found["changes"])
    assert {"microbatches", "limit", "least", "too_little"} < set(found["enough_memory"])


def test_recomputation_counts_as_idle_where_changes_are_compared(
    pipeloom: Command, tmp_path: Path
) -> None:
    """Else one that recomputes less would look worse: the summary's bubble counts it as work."""
    stage = {"t_f": 2, "t_b": 3, "t_w": 3, "m_b": 1, "m_w": 0.5, "t_r": 2, "m_r": 0.1}
    profile = written(tmp_path / "p.json", profile_document(stages=[stage], ranks=2))
    words = ["optimize", profile, "-m", 3, "--memory-limit", 1, "--recompute", "all", "-q"]
    out = pipeloom(*words, "--time-limit", 1, "--explain", "-o", tmp_path / "out.json").out
    assert "what would change the bubble (recomputation counted as idle)" in out
    at = out.index("as it is")
    assert out[at:].split("%")[1].strip() != out.split("bubble rate")[1].split("%")[0].strip()


def test_an_infeasible_limit_is_explained_by_the_smallest_one(
    pipeloom: Command, profile: Path
) -> None:
    done = pipeloom(
        "optimize", profile, "-m", 2, "--memory-limit", 0.5, "--explain", "--json", "-q"
    )
    assert done.code == 1
    assert (done.json["smallest_memory_limit"], done.json["rank"]) == (1.0, 0)


def test_schedules_of_a_system_are_called_so(pipeloom: Command, profile: Path) -> None:
    words = ["optimize", profile, "-m", 4, "--memory-limit", 4, "-q", "--for", "megatron"]
    answer = pipeloom(*words, "--explain", "--json").json
    assert {change["cost"] for change in answer["explanation"]["changes"]} == {None}
    done = pipeloom(*words, "--explain", "-o", "-")
    assert "\nwhy no other schedule\n" in done.err
