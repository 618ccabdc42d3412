"""Words that people type who have not read the pages: each is answered with what to type."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import Command, profile_document, written

NEAR = {
    "a family's first word": (
        ["build", "interleaved", "P", "-m", "2"],
        "pipeloom: FAMILY: expected one of gpipe, 1f1b, ",
        "got 'interleaved'; did you mean interleaved-1f1b?",
    ),
    "a family as a placement": (
        ["optimize", "P", "-m", "2", "--placement", "chimera"],
        "pipeloom: argument --placement: expected linear, ",
        "got 'chimera'; its placement is bidirectional ",
    ),
    "a V's family as a placement": (
        ["optimize", "P", "-m", "2", "--placement", "zb-v"],
        "pipeloom: argument --placement: expected linear, ",
        "got 'zb-v'; its placement is v (",
    ),
    "a placement without its number": (
        ["optimize", "P", "-m", "2", "--placement", "Interleaved"],
        "pipeloom: argument --placement: expected linear, ",
        "got 'Interleaved'; did you mean interleaved:2? (",
    ),
    "an option's beginning": (
        ["optimize", "P", "-m", "2", "--memory_limit", "3"],
        "pipeloom: unrecognized arguments: --memory_limit 3; did you mean --memory-limit? (see ",
        "",
    ),
    "no number of microbatches": (
        ["optimize", "P"],
        "pipeloom: -m/--microbatches: missing; expected a number, as ",
        " has no lists of one number a microbatch",
    ),
    "one file for two things": (
        ["optimize", "P", "-m", "2", "--certificate", "./x.json", "-o", "x.json"],
        "pipeloom: --certificate: expected another file than the schedule's, got ./x.json",
        "",
    ),
    "standard output for two things": (
        ["optimize", "P", "-m", "2", "--certificate", "-"],
        "pipeloom: --certificate: expected a file, got - (standard output)",
        "",
    ),
}


@pytest.mark.parametrize(("words", "begins", "has"), NEAR.values(), ids=NEAR)
def test_a_near_miss_is_told_what_is_there(
    pipeloom: Command,
    profile: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    begins: str,
    has: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = pipeloom(*(profile if word == "P" else word for word in words))
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert done.err.startswith(begins)
    assert has in done.err
    assert not Path("x.json").exists()


def test_offload_without_a_link_to_the_host_is_told(pipeloom: Command, tmp_path: Path) -> None:
    stage = {"t_f": 1, "t_b": 1, "t_w": 1, "m_b": 1, "m_w": 0.5, "m_o": 0.1}
    for link, told in ((None, True), ({"gigabytes_per_second": 1}, False)):
        document = profile_document(stages=[stage], ranks=2, num_stages=2)
        document |= {"host_link": link} if link else {}
        path = written(tmp_path / "p.json", document)
        done = pipeloom("optimize", path, "-m", 2, "--work-limit", 0.1, "--json")
        assert done.code == 0
        assert (f"note: {path}: m_o: not used without a host_link" in done.err) is told


def test_color_is_colour(pipeloom: Command, schedule: Path) -> None:
    shown = [pipeloom("show", schedule, word, "always") for word in ("--color", "--colour")]
    assert shown[0] == shown[1]
    assert "\x1b[" in shown[0].out


@pytest.mark.parametrize("layers", [3, "emb", {"emb": 1}, True])
def test_layers_beside_stages_are_a_list(pipeloom: Command, tmp_path: Path, layers: object) -> None:
    stage = {"t_f": 1, "t_b": 1, "t_w": 1, "m_b": 1, "m_w": 0.5}
    document = profile_document(stages=[stage], ranks=2, num_stages=2) | {"layers": layers}
    path = written(tmp_path / "p.json", document)
    done = pipeloom("optimize", path, "-m", 2, "--work-limit", 0.1)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert done.err.startswith(f"pipeloom: {path}: layers: expected a list, got ")


@pytest.mark.parametrize("words", [["optimize"], ["compare", "--no-optimizer"], ["build", "gpipe"]])
def test_layers_beside_stages_are_left_with_a_note_where_nothing_cuts_them(
    pipeloom: Command, tmp_path: Path, words: list[str]
) -> None:
    stage = {"t_f": 1, "t_b": 1, "t_w": 1, "m_b": 1, "m_w": 0.5}
    document = profile_document(stages=[stage], ranks=2, num_stages=2) | {"layers": [1, None]}
    path = written(tmp_path / "p.json", document)
    limit = ["--work-limit", 0.1] if words == ["optimize"] else []
    done = pipeloom(*words, path, "-m", 2, "--json", *limit)
    assert done.code == 0
    assert done.err.count(f"note: {path}: layers: not used beside stages without an option") == 1


def test_keys_of_layers_in_stages_are_told(pipeloom: Command, tmp_path: Path) -> None:
    stage = {"t_f": 1, "t_b": 1, "t_w": 1, "m_b": 1, "m_w": 0.5, "repeat": 2}
    document = profile_document(stages=[stage, stage], ranks=2) | {"kind": "block"}
    path = written(tmp_path / "p.json", document)
    done = pipeloom("build", "gpipe", path, "-m", 2)
    assert done.code == 0
    for place in ("kind", "stages[0]: repeat"):
        assert done.err.count(f"{path}: {place}: not used: only layers have it\n") == 1
