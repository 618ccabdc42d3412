"""The published throughput and memory tables, predicted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.published.assumed import BASE
from benchmarks.published.cells import load_rows
from benchmarks.published.rings import TURNS, elements
from benchmarks.published.schemes import FAMILY, predict
from benchmarks.published.throughput import agreement, compared
from pipeloom.ir.model.links import Link


@pytest.mark.slow
def test_winners_and_what_runs_out_of_memory() -> None:
    rows = [compared(row, BASE) for row in load_rows()]
    found = agreement(rows)
    assert (len(rows), found["memory"]) == (21, 21 * len(FAMILY))
    assert found["winners"] >= 20
    wrong = [row for row in rows if row["winner"] != row["predicted_winner"]]
    assert [(row["gpus"], row["hidden"]) for row in wrong] == [("16gpu_pcie_ethernet", 4096)]


def test_overlap_of_fsdp_decides_the_tables_with_ethernet() -> None:
    """As slow as its messages: then it beats WeiPipe, which sends as much and has a bubble."""
    row = load_rows()[0]
    overlapping = replace(BASE, overlap=BASE.overlap | {"FSDP"})
    assert predict(row, "FSDP", BASE).throughput < predict(row, "WeiPipe", BASE).throughput
    assert predict(row, "FSDP", overlapping).throughput > predict(row, "WeiPipe", BASE).throughput


def test_a_blocking_message_keeps_both_ranks() -> None:
    """1F1B over one slow link: two messages a microbatch on top of the compute, in steady state."""
    row = load_rows()[0]
    times = []
    for ethernet in (BASE.ethernet, BASE.ethernet / 2):
        rate = predict(row, "1F1B", replace(BASE, ethernet=ethernet)).throughput
        times.append(BASE.rounds * row.tokens / rate * 1e3)
    message = Link(0.0, BASE.ethernet).delay(2.0 * row.tokens * row.hidden)
    steady = 2 * message * BASE.rounds * row.gpus
    assert times[1] - times[0] == pytest.approx(steady, rel=0.01)


@pytest.mark.parametrize("name", TURNS)
def test_elements_a_turn_and_a_microbatch(name: str) -> None:
    expected = {"weipipe-naive": 72.0, "weipipe-interleave": 36.0, "wzb1": 54.0, "wzb2": 108.0}
    found = elements(name)
    assert found["turn"] == pytest.approx(36.0)
    assert found["microbatch"] == pytest.approx(expected[name])
