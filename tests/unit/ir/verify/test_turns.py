"""Circles of ops that wait for each other are named, also where no times can tell."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from pipeloom.ir.formats import dump_schedule
from pipeloom.ir.model.links import Link, Links
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.solver.families import build_family

NOTHING = StageProfile(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def document(family: str, ranks: int = 2, microbatches: int = 3) -> dict[str, Any]:
    """A schedule whose ops and messages all take no time."""
    profile = Profile((NOTHING,) * ranks, ranks=ranks, links=Links(Link(0.0, 1.0)))
    found = json.loads(json.dumps(dump_schedule(build_family(family, profile, microbatches))))
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("family", ["gpipe", "zb-h1", "chimera", "weipipe-interleave", "fsdp"])
def test_schedules_without_times_are_valid(family: str) -> None:
    assert verify_schedule(document(family, microbatches=4)) == []


def test_ranks_that_wait_for_each_other_are_named() -> None:
    plan = document("gpipe")
    first, second = plan["order"]
    first[0], first[1] = first[1], first[0]  # F of microbatch 1, then of 0
    assert verify_schedule(plan) == []
    first[:] = [op for op in first if op["op"] != "BW"] + [op for op in first if op["op"] == "BW"]
    second.sort(key=lambda op: op["microbatch"])  # 1F0 1BW0 1F1 ...
    late = next(i for i, op in enumerate(first) if (op["op"], op["microbatch"]) == ("BW", 0))
    first.insert(0, first.pop(late))  # 0BW0 before 0F0
    found = verify_schedule(plan)
    assert any(line.startswith("can never run: rank ") for line in found)


def test_transfers_that_wait_for_what_they_serve_are_named() -> None:
    plan = document("weipipe-interleave", microbatches=4)
    move = next(m for m in plan["transfers"] if m["tensor"] == "weight" and m["before"] == 0)
    move["room"] = 1  # its first use has to be over
    found = verify_schedule(plan)
    assert any(line.startswith("can never run: ") and "transfers[" in line for line in found)


def test_whatever_can_never_run_is_found_where_all_times_are_zero() -> None:
    """Ops of one rank in any order, held against running them one by one."""
    draw, stuck = Random(5), 0
    for _ in range(60):
        plan = document("zb-h1", ranks=3)
        row = draw.choice(plan["order"])
        a, b = draw.randrange(len(row)), draw.randrange(len(row))
        row[a], row[b] = row[b], row[a]
        runs = can_run(plan["order"])
        stuck += not runs
        assert (verify_schedule(plan) == []) == runs
    assert 10 < stuck < 60


def can_run(order: list[list[dict[str, Any]]]) -> bool:
    """Whether all ops of activations passed down the stages come to their turn."""
    last = max(op["stage"] for row in order for op in row)
    done: set[tuple[str, int, int]] = set()
    left = [list(row) for row in order]

    def ready(op: dict[str, Any]) -> bool:
        s, j = op["stage"], op["microbatch"]
        if op["op"] == "F":
            return s == 0 or ("F", s - 1, j) in done
        if op["op"] == "W":
            return ("B", s, j) in done
        return ("F", s, j) in done and (s == last or ("B", s + 1, j) in done)

    moved = True
    while moved:
        moved = False
        for row in left:
            while row and ready(row[0]):
                op = row.pop(0)
                done |= {(kind, op["stage"], op["microbatch"]) for kind in op["op"]}
                moved = True
    return not any(left)
