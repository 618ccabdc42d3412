"""The verifier names what is wrong with steps ahead of the norm."""

from __future__ import annotations

from typing import Any

import pytest

from pipeloom.compiler import compile_schedule
from pipeloom.ir.formats.program_json import dump_program
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.verify.program import verify_program
from pipeloom.solver.families import build_family

RANKS = 3


def document() -> dict[str, Any]:
    profile = Profile((StageProfile(2.0, 2.0, 1.5),) * RANKS, RANKS, t_comm=0.1)
    return dump_program(compile_schedule(build_family("zb-h1", profile, 3), post_validation=True))


def test_a_compiled_program_is_valid() -> None:
    assert verify_program(document()) == []


@pytest.mark.parametrize(
    ("rank", "old", "new", "expected"),
    [
        (1, "relay sums from 0 to 2", None, "ranks [0, 1, 2] step, relay sums is done by ranks [0, 2]"),  # noqa: E501
        (1, "relay verdict from 2 to 0", None,
         "ranks [0, 1, 2] step, relay verdict is done by ranks [0, 2]"),
        (1, "relay sums from 0 to 2", "relay sums from 2 to 0",
         "the sums do not go from rank to rank, once through each"),
        (1, "relay sums from 0 to 2", "relay sums from 0",
         "the sums do not go from rank to rank, once through each"),
        (1, "relay verdict from 2 to 0", "relay verdict to 0",
         "the verdict is not relayed back on the way that the sums came"),
        (1, "relay sums from 0 to 2", "relay sums from 0 to 9",
         "the sums do not go from rank to rank, once through each"),
    ],
)  # fmt: skip
def test_a_wrong_chain(rank: int, old: str, new: str | None, expected: str) -> None:
    program = document()
    row = program["instructions"][rank]
    row[row.index(old) : row.index(old) + 1] = [] if new is None else [new]
    assert expected in verify_program(program)


@pytest.mark.parametrize(
    ("rank", "text", "before", "expected"),
    [
        (0, "relay sums to 1", "0W2", "comes before all gradients are there"),
        (0, "step 0", "relay sums to 1", "comes after a step"),
        (0, "relay verdict from 1", "0W0", "runs before the verdict, and cannot be run again"),
        (0, "relay verdict from 1", "wait recv dy0.0",
         "posted before the verdict, but sent after the sender's"),
        (2, "relay verdict to 1", "wait recv x2.0", None),
        (2, "relay verdict to 1", "relay sums from 1", "deadlock: "),
    ],
)  # fmt: skip
def test_a_relay_out_of_place(rank: int, text: str, before: str, expected: str | None) -> None:
    program = document()
    row = program["instructions"][rank]
    row.remove(text)
    row.insert(row.index(before), text)
    found = verify_program(program)
    assert any(expected in line for line in found) if expected else found == []


def test_where_weights_travel_no_rank_steps_ahead() -> None:
    profile = Profile((StageProfile(1.0, 1.0, 1.0, weight_bytes=1.0),) * 2, 2, t_comm=0.1)
    program = dump_program(compile_schedule(build_family("weipipe-interleave", profile, 2)))
    program["instructions"][0].insert(0, "relay verdict from 1")
    assert any(
        "no rank can step ahead where weights are passed" in x for x in verify_program(program)
    )
