"""The recorded study of clusters: the page shows it, and a cell of it comes out of the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import hybrids
from benchmarks.hybrids.study import CLUSTERS, SEQUENCES, cell, table, winners
from pipeloom.ir.model.links import Link

FOLDER = Path(hybrids.__file__).parent
RECORDED: list[dict[str, Any]] = json.loads((FOLDER / "results/hybrids.json").read_text())["cells"]


def test_the_page_shows_what_is_recorded() -> None:
    lines = (FOLDER / "README.md").read_text().splitlines()
    assert [line for line in lines if line.startswith("|")] == table(RECORDED)


def test_each_cluster_at_each_length_once_and_each_kind_wins() -> None:
    wanted = [(name, sequence) for name in CLUSTERS for sequence in SEQUENCES]
    assert [(cell["cluster"], cell["sequence"]) for cell in RECORDED] == wanted
    assert len(winners(RECORDED)) == 5


def test_rails_join_the_same_places_of_two_rows() -> None:
    links = CLUSTERS["4 rails of 2, 2 GB/s"].links
    assert links is not None
    assert {(a, b) for a, b, _ in links.pairs} == {(0, 4), (1, 5), (2, 6), (3, 7)}
    assert all(link == Link(0.005, 200.0) for _, _, link in links.pairs)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(0, len(RECORDED), 5))
def test_a_cell_again(number: int) -> None:
    old = RECORDED[number]
    new = cell(CLUSTERS[old["cluster"]], old["sequence"])
    assert new["best"] == old["best"]
    for one, other in zip(new["schemes"], old["schemes"], strict=True):
        assert one["step"] == pytest.approx(other["step"], rel=1e-6)
