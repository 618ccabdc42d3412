from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipeloom.ir.errors import InputError
from pipeloom.ir.formats import dump_schedule
from pipeloom.ir.model.profile import Link, Links, Profile, StageProfile
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.ir.verify.schedule_facts import Facts, read_facts
from pipeloom.ir.verify.transfers import arrivals, verify_transfers
from pipeloom.solver.families import build_family

STAGE = StageProfile(t_f=1.0, t_b=1.0, t_w=1.0, weight_bytes=1e6, grad_bytes=2e6)
Document = dict[str, Any]


def document(ranks: int = 2, microbatches: int = 4) -> Document:
    profile = Profile((STAGE,) * ranks, ranks, links=Links(Link(0.0, 4.0)))
    return dump_schedule(build_family("weipipe-interleave", profile, microbatches))


def facts(valid: Document) -> Facts:
    return read_facts(valid, "schedule")


def transfers(valid: Document, tensor: str, stage: int, copy: int = 0) -> list[Document]:
    return [
        t
        for t in valid["transfers"]
        if (t["tensor"], t["stage"], t["copy"]) == (tensor, stage, copy)
    ]


def test_what_the_family_makes_is_valid() -> None:
    for ranks, count in ((1, 2), (2, 1), (2, 4), (3, 7), (4, 2), (4, 8)):
        assert verify_schedule(document(ranks, count)) == []


def test_arrivals_are_by_the_op_that_needs_them() -> None:
    valid = document()
    for (rank, position), end in arrivals(facts(valid)).items():
        if position < len(valid["order"][rank]):
            assert valid["order"][rank][position]["start"] >= end > 0
    assert arrivals(facts(valid))[0, 1] == 0.25  # stage 1's weights come from rank 1 for 1F0


def drop_last_hop_home(valid: Document) -> None:
    valid["transfers"].remove(transfers(valid, "gradient", 0)[-1])


def drop_a_visit(valid: Document) -> None:
    first, second = transfers(valid, "weight", 0)[:2]
    valid["transfers"].remove(first)
    valid["transfers"].remove(second)


def come_too_late(valid: Document) -> None:
    transfers(valid, "weight", 0)[0]["before"] = 1


def leave_before_adding(valid: Document) -> None:
    transfers(valid, "gradient", 0)[-1]["after"] = 7


def break_the_chain(valid: Document) -> None:
    valid["transfers"].remove(transfers(valid, "weight", 1, 1)[1])


def start_late(valid: Document) -> None:
    transfers(valid, "weight", 0)[0]["start"] += 0.5


def be_instant(valid: Document) -> None:
    move = transfers(valid, "gradient", 0)[-1]
    move["end"] = move["start"]


def ignore_room(valid: Document) -> None:
    move = next(t for t in valid["transfers"] if t["room"] == 5)
    move["room"] = 8


@pytest.mark.parametrize(
    ("damage", "violations"),
    [
        (
            drop_last_hop_home,
            [
                "transfers[19] (gradient 0 copy 0, rank 0 to 1): ends on rank 1, but stage 0 is "
                "owned by rank 0",
                "rank 1, op 7 (0BW3): no D of stage 0 takes its gradient to the owner, rank 0",
            ],
        ),
        (drop_a_visit, ["rank 1, op 0 (0F1): the weights of stage 0 are not there"]),
        (come_too_late, ["rank 1, op 0 (0F1): the weights of stage 0 are not there"]),
        (
            leave_before_adding,
            ["rank 1, op 7 (0BW3): no D of stage 0 takes its gradient to the owner, rank 0"],
        ),
        (break_the_chain, ["its copy is on rank 0 then"]),
        (start_late, ["(weight 0 copy 0, rank 0 to 1): starts at 1.5, by the rule at 1"]),
        (be_instant, ["(gradient 0 copy 0, rank 1 to 0): ends at 17.5, by its delay at 18"]),
        (ignore_room, ["by the rule at"]),
    ],
)
def test_damage_is_named(damage: Callable[[Document], None], violations: list[str]) -> None:
    valid = document()
    damage(valid)
    found = verify_schedule(valid)
    for violation in violations:
        assert any(violation in line for line in found), found


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("stage", 2, "stage: expected less than 2, got 2"),
        ("to", 2, "goes from rank 1 to 2 of 2 ranks"),
        ("to", 1, "goes from rank 1 to itself"),
        ("after", 9, "after: expected at most 8, the number of rank 1's ops, got 9"),
    ],
)
def test_a_transfer_out_of_range_is_named(key: str, value: object, words: str) -> None:
    valid = document()
    valid["transfers"][0][key] = value
    assert verify_transfers(facts(valid)) == [f"transfers[0]: {words}"]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("tensor", "weights", 'tensor: expected weight or gradient, got "weights"'),
        ("after", None, "after: expected a whole number >= 0, got null"),
        ("room", -1, "room: expected a whole number >= 0, got -1"),
        ("start", "soon", 'start: expected a finite number >= 0, got "soon"'),
    ],
)
def test_a_misshapen_transfer_is_wrong_input(key: str, value: object, words: str) -> None:
    valid = document()
    valid["transfers"][0][key] = value
    with pytest.raises(InputError) as caught:
        verify_schedule(valid)
    assert caught.value.errors == (f"schedule: transfers[0]: {words}",)
    valid["transfers"] = [7]
    with pytest.raises(InputError, match=r"transfers\[0\]: expected an object, got 7"):
        verify_schedule(valid)
