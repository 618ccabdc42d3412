"""Damage that once ended in an internal error, each kind told in lines that name the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import Command, profile_document

NOWHERE = {"stage": 9, "from": 9, "to": 9, "after": 99, "room": 99, "before": 99}


@pytest.fixture
def streamed(pipeloom: Command, profile: Path, tmp_path: Path) -> dict[str, Any]:
    """A schedule whose weights are sent."""
    document: dict[str, Any] = pipeloom("build", "weipipe-interleave", profile, "-m", 2).json
    return document


@pytest.mark.parametrize("key", NOWHERE)
@pytest.mark.parametrize("words", [["verify"], ["compile"], ["compile", "--data-parallel"]])
def test_transfers_that_lead_nowhere(
    pipeloom: Command, streamed: dict[str, Any], tmp_path: Path, words: list[str], key: str
) -> None:
    path = tmp_path / "damaged.json"
    for entry in streamed["transfers"]:
        before, entry[key] = entry.get(key), NOWHERE[key]
        path.write_text(json.dumps(streamed))
        done = pipeloom(*words, path)
        lines = (done.out if words == ["verify"] and done.code == 1 else done.err).splitlines()
        assert done.code in (1, 2)
        assert lines
        assert all(str(path) in line for line in lines)
        entry[key] = before


def test_transfers_that_are_missing(
    pipeloom: Command, streamed: dict[str, Any], tmp_path: Path
) -> None:
    """What verify takes compile takes as well: a last hop that nobody needs."""
    path, whole, codes = tmp_path / "damaged.json", streamed["transfers"], set()
    for left_out in range(len(whole)):
        document = streamed | {"transfers": whole[:left_out] + whole[left_out + 1 :]}
        path.write_text(json.dumps(document))
        verified, compiled, averaged = (
            pipeloom(*words, path).code
            for words in (["verify"], ["compile"], ["compile", "--data-parallel"])
        )
        assert averaged == compiled <= verified
        codes |= {compiled, verified}
    assert codes == {0, 1}


@pytest.mark.parametrize("times", [(0.0, 1e-9, 0.0), (1e-300, 0.0, 1e-12)])
@pytest.mark.parametrize("microbatches", [1, 3])
def test_weights_are_passed_though_ops_take_next_to_no_time(
    pipeloom: Command, tmp_path: Path, times: tuple[float, ...], microbatches: int
) -> None:
    path, plan = tmp_path / "p.json", tmp_path / "plan.json"
    stage = dict(zip(("t_f", "t_b", "t_w"), times, strict=True)) | {"m_b": 1.0, "m_w": 0.5}
    links = {"latency": 0.0, "gigabytes_per_second": 1.0}
    document = profile_document(stages=[stage | {"weight_bytes": 8.0}] * 3, ranks=3, links=links)
    path.write_text(json.dumps(document))
    words = ["--passing", "weights", "--work-limit", 0.001, "-q", "-o", plan]
    assert pipeloom("optimize", path, "-m", microbatches, *words).code == 0
    assert pipeloom("verify", plan).code == 0
