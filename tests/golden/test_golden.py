"""Whole programs of small schedules and the orders of families, line by line.

``programs.txt`` has one block a rank: the name of the program, the rank, buffers, instructions.
``family_orders.txt`` has a head of family, P and M, then one line a rank: long runs, fewer
microbatches than ranks, a remainder, and small ones that a reader can follow by hand.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeloom.compiler import compile_schedule
from pipeloom.ir import Profile, Program, Schedule, format_order
from pipeloom.solver import FAMILIES, build_family
from tests.support.by_hand import UNIT, by_hand

# whole programs of small schedules: what the compiler makes of them, line by line -----------------


GOLDEN = Path(__file__).with_name("programs.txt")


def delayed(*rows: str) -> Schedule:
    """Each message takes 0.1 ms."""
    plan = by_hand(*rows)
    profile = replace(plan.problem.profile, t_comm=0.1)
    return replace(plan, problem=replace(plan.problem, profile=profile))


def weipipe_interleave() -> Schedule:
    """Three microbatches: 0 and 2 on rank 0, 1 on rank 1; stage s is owned by rank s.

    ::

        turn    0     1     2         3         4     5
        rank 0  F00 | F10 | B10 F02 | B00 F12 | B12 | B02 |
        rank 1      | F01 | F11     | B11     | B01 |
    """
    profile = Profile((UNIT,) * 2, 2, t_comm=0.25)
    return build_family("weipipe-interleave", profile, 3)


PROGRAMS: dict[str, tuple[Schedule, dict[str, Any]]] = {
    "1f1b with tied ends": (
        delayed("0F0 0F1 0BW0 0F2 0BW1 0BW2", "1F0 1BW0 1F1 1BW1 1F2 1BW2"),
        {"tied": [(0, 1)]},
    ),
    "deferred weight gradients keep what they read": (delayed("0F0 0B0 0W0", "1F0 1B0 1W0"), {}),
    "one rank sends nothing": (delayed("0F0 1F0 1BW0 0BW0"), {}),
    "neighbours on one rank need no message": (
        delayed("0F0 3F0 3BW0 0BW0", "1F0 2F0 2BW0 1BW0"),
        {"tied": [[3, 0]]},
    ),
    # The verdict stands after the first forwards; what comes after the sender's is received later.
    "1f1b that steps ahead of the norm": (
        delayed("0F0 0F1 0BW0 0BW1", "1F0 1BW0 1F1 1BW1"),
        {"post_validation": True},
    ),
    "pipedream, a step each": (build_family("pipedream", Profile((UNIT,) * 2, 2), 3), {}),
    "weipipe-interleave with tied ends": (weipipe_interleave(), {"tied": [(0, 1)]}),
}


def text(name: str, program: Program) -> str:
    blocks = []
    for rank, (buffers, row) in enumerate(zip(program.buffers, program.instructions, strict=True)):
        head = f"{name}, rank {rank}, buffers: {' '.join(map(str, buffers)) or 'none'}"
        blocks.append("\n".join([head, *map(str, row)]))
    return "\n\n".join(blocks)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    plan, options = PROGRAMS[name]
    blocks = GOLDEN.read_text(encoding="utf-8").strip().split("\n\n")
    expected = [block for block in blocks if block.startswith(f"{name}, ")]
    assert text(name, compile_schedule(plan, **options)) == "\n\n".join(expected)


# the order of every family at P = 4: long runs, fewer microbatches than ranks, and a remainder; ---


ORDERS = Path(__file__).with_name("family_orders.txt").read_text(encoding="utf-8")
CASES = [block.splitlines() for block in ORDERS.strip().split("\n\n")]


@pytest.mark.parametrize("lines", CASES, ids=lambda lines: lines[0])
def test_orders(lines: list[str]) -> None:
    """Each block: a head of family, P and M, then one line a rank."""
    name, ranks, microbatches = lines[0].split()
    profile = Profile((UNIT,) * int(ranks[2:]), int(ranks[2:]))
    schedule = build_family(name, profile, int(microbatches[2:]))
    assert [format_order(schedule.ops(r)) for r in range(profile.ranks)] == lines[1:]


def test_every_family_has_an_order() -> None:
    assert {lines[0].split()[0].partition(":")[0] for lines in CASES} == set(FAMILIES)
