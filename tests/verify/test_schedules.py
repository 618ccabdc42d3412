"""No mutant of a sound schedule is accepted, and each breach is named.

``schedule.json`` is written by hand; ``schedule_mutants.txt`` has changes of it, and of some that
families build, with what is said of each. ``!`` marks what is no schedule at all: wrong input. The
simulator and the verifier, written apart, agree on random orders.
"""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given

from pipeloom import (
    InputError,
    InvalidScheduleError,
    Profile,
    Schedule,
    StageProfile,
    build_family,
    dump_schedule,
    load_schedule,
    simulate,
    verify_schedule,
)
from pipeloom.ir import DataParallel, Link, Links
from tests.support.families import families_of
from tests.support.mutants import Document, Mutant, edited, mutants
from tests.support.random_schedules import SEEDS, schedules

HERE = Path(__file__).parent
PROFILE = Profile(
    (StageProfile(1.0, 1.3, 0.7, 2.0, 1.0), StageProfile(1.1, 0.9, 0.6, 3.0, 2.0), StageProfile(0.8, 1.2, 0.5)),  # noqa: E501
    3,
    t_comm=((0.0, 0.1, 0.2), (0.3, 0.0, 0.15), (0.25, 0.35, 0.0)),
    memory_limit=(50.0, 50.0, 50.0),
)  # fmt: skip
NOTHING = StageProfile(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
WEIGHTS = StageProfile(t_f=1.0, t_b=1.0, t_w=1.0, weight_bytes=1e6, grad_bytes=2e6)
AVERAGED = StageProfile(2.0, 2.0, 1.5, 1.0, 0.5, t_fb=4.0, weight_bytes=1e6, grad_bytes=8e6)
REPLICAS = DataParallel(4, Link(0.5, 1.0))  # 8e6 bytes: 6 rounds of .5 + 2 ms
PAIRED = StageProfile(1.0, 1.0, 1.0, weight_bytes=1.0, t_fb=2.4)
BUILT = {
    "weights": ("weipipe-interleave", Profile((WEIGHTS,) * 2, 2, links=Links(Link(0.0, 4.0))), 4),
    "averaged": ("zb-v", Profile((AVERAGED,) * 2, 2, t_comm=0.1, data_parallel=REPLICAS), 4),
    "pairs": ("dualpipe", Profile((PAIRED,) * 4, 4), 8),
    **{f"{name}, P = 3": (name, PROFILE, 3) for name in families_of(3)},
}


def through_text(schedule: Schedule) -> Document:
    return json.loads(json.dumps(dump_schedule(schedule)))  # type: ignore[no-any-return]


def written(name: str) -> Document:
    if name == "by hand":
        return json.loads((HERE / "schedule.json").read_text())  # type: ignore[no-any-return]
    return through_text(build_family(*BUILT[name]))


def said(document: Any) -> list[str]:
    try:
        return verify_schedule(document)
    except InputError as error:
        return [f"! {line}" for line in error.errors]


@pytest.mark.parametrize("name", ["by hand", *BUILT])
def test_sound_schedules_are_accepted(name: str) -> None:
    assert verify_schedule(written(name)) == []


@pytest.mark.parametrize("mutant", mutants(HERE / "schedule_mutants.txt"), ids=str)
def test_each_breach_is_named(mutant: Mutant) -> None:
    found = said(edited(written(mutant.base), mutant.edits))
    if mutant.expected == ("valid",):
        assert found == []
    else:
        for expected in mutant.expected:
            marked = expected.startswith("! ")
            lines = [line for line in found if line.startswith("! ") == marked]
            assert any(expected.removeprefix("! ") in line for line in lines), found


def test_many_missing_ops_are_named_up_to_a_point() -> None:
    assert 50 <= len(verify_schedule(written("by hand") | {"microbatches": 4 * 10**5})) < 100


@given(schedules())
def test_what_the_simulator_times_the_verifier_finds_right(schedule: Schedule) -> None:
    assert verify_schedule(through_text(schedule)) == []


@given(schedules(), SEEDS)
def test_orders_that_can_never_run_are_wrong_to_both(schedule: Schedule, seed: int) -> None:
    """Shuffled, an order runs or it does not; if not, no times make it pass: all are zero here."""
    problem, random = schedule.problem, Random(seed)
    timeless = replace(problem.profile, stages=(NOTHING,) * problem.stages, t_comm=0.0)
    document = through_text(replace(schedule, problem=replace(problem, profile=timeless)))
    random.shuffle(random.choice([row for row in document["order"] if row]))
    shuffled = replace(load_schedule(document), timing=None)
    if [line for line in verify_schedule(document) if not line.startswith("report: ")]:
        with pytest.raises(InvalidScheduleError):
            simulate(shuffled)
    else:
        assert simulate(shuffled).makespan == 0.0


def change(document: Document, what: str, random: Random) -> None:
    """Of one op; ``schedule_mutants.txt`` has limits and reports that are wrong."""
    row = random.choice(document["order"])
    at, other = random.sample(range(len(row)), 2)
    op, end = row[at], row[-1]["end"]
    match what:
        case "dropped":
            del row[at]
        case "repeated":
            row.append({**op, "start": end, "end": end + 1.0})
        case "shifted":
            by = 0.01 if op["start"] < 0.01 else random.choice([-0.01, 0.01])
            row[at] = {**op, "start": op["start"] + by, "end": op["end"] + by}
        case "stretched":
            op["end"] += 0.01
        case "swapped":
            row[at], row[other] = row[other], op
        case "renamed":
            key = random.choice(["stage", "microbatch"])
            op[key] = (op[key] + 1) % 3
        case "moved":
            others = [each for each in document["order"] if each is not row]
            random.choice(others).append(row.pop())


CHANGES = ("dropped", "repeated", "shifted", "stretched", "swapped", "renamed", "moved")


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("name", families_of(3))
def test_every_change_is_noticed(name: str, what: str) -> None:
    document = written(f"{name}, P = 3")
    for seed in range(12):
        changed = copy.deepcopy(document)
        change(changed, what, Random(seed))
        assert verify_schedule(changed) != [], seed


def test_transfers_that_wait_for_what_they_serve_are_named() -> None:
    """No times can tell: ops and transfers all take none."""
    profile = Profile((NOTHING,) * 2, ranks=2, links=Links(Link(0.0, 1.0)))
    plan = through_text(build_family("weipipe-interleave", profile, 4))
    move = next(m for m in plan["transfers"] if m["tensor"] == "weight" and m["before"] == 0)
    move["room"] = 1  # its first use has to be over
    found = verify_schedule(plan)
    assert any(line.startswith("can never run: ") and "transfers[" in line for line in found)


PLACED = [
    ("gpipe", "linear"),
    ("interleaved-1f1b:3", "interleaved:3"),
    ("zb-v", "v"),
    ("wave:2", "wave:2"),
    ("chimera", "bidirectional"),
    ("fsdp", "round-robin"),
]


@pytest.mark.parametrize(("family", "name"), PLACED)
def test_placements_are_named_or_found_out(family: str, name: str) -> None:
    stage = StageProfile(1.0, 1.0, 1.0, 1.0, 0.5, weight_bytes=8.0, activation_bytes=1.0)
    saved = dump_schedule(build_family(family, Profile((stage,) * 4, 4), 4))
    assert saved["placement"] == name
    read = load_schedule({key: value for key, value in saved.items() if key != "placement"})
    assert (verify_schedule(saved), read.problem.placement.name) == ([], name)
