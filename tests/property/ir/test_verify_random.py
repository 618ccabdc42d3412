"""The simulator and the verifier, written apart, on random orders: they agree, and nothing slips
by."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.errors import InvalidScheduleError
from pipeloom.ir.formats import dump_schedule
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.solver.families import build_family
from tests.support.families import families_of
from tests.support.random_schedules import schedules

Document = dict[str, Any]


def through_text(schedule: Schedule) -> Document:
    return json.loads(json.dumps(dump_schedule(schedule)))  # type: ignore[no-any-return]


@given(schedules())
def test_what_the_simulator_times_the_verifier_finds_right(schedule: Schedule) -> None:
    assert verify_schedule(through_text(schedule)) == []


@given(schedules(), st.integers(0, 2**32))
def test_orders_that_can_never_run_are_wrong_to_both(schedule: Schedule, seed: int) -> None:
    """Shuffled, an order runs or it does not; if not, no times make it pass."""
    order = list(schedule.order)
    random = Random(seed)
    rank = random.choice([r for r, row in enumerate(order) if len(row)])
    order[rank] = order[rank][random.sample(range(len(order[rank])), len(order[rank]))]
    shuffled = replace(schedule, order=tuple(order))
    document = through_text(schedule)
    rows = [
        [{**_plain(op), "start": 0.0, "end": 0.0} for op in shuffled.ops(r)]
        for r in range(len(order))
    ]
    try:
        document["order"] = through_text(replace(shuffled, timing=simulate(shuffled)))["order"]
    except InvalidScheduleError:
        document["order"] = rows
        assert verify_schedule(document) != []
        return
    assert not [line for line in verify_schedule(document) if not line.startswith("report: ")]


def _plain(op: Any) -> Document:
    return {"op": op.kind.name, "stage": op.stage, "microbatch": op.microbatch}


def drop(document: Document, random: Random) -> None:
    row = _some_row(document, random)
    del row[random.randrange(len(row))]


def repeat(document: Document, random: Random) -> None:
    row = _some_row(document, random)
    row.append({**random.choice(row), "start": row[-1]["end"], "end": row[-1]["end"] + 1.0})


def shift(document: Document, random: Random) -> None:
    op = random.choice(_some_row(document, random))
    by = random.choice([-0.01, 0.01])
    op["start"], op["end"] = max(0.0, op["start"] + by), op["end"] + by
    if op["start"] == 0.0:
        op["start"] += 0.01


def stretch(document: Document, random: Random) -> None:
    random.choice(_some_row(document, random))["end"] += 0.01


def swap(document: Document, random: Random) -> None:
    row = _some_row(document, random)
    i, j = random.sample(range(len(row)), 2)
    row[i], row[j] = row[j], row[i]


def rename(document: Document, random: Random) -> None:
    op = random.choice(_some_row(document, random))
    key = random.choice(["stage", "microbatch"])
    op[key] = (op[key] + 1) % 3


def move(document: Document, random: Random) -> None:
    source, target = random.sample(range(3), 2)
    document["order"][target].append(document["order"][source].pop())


def squeeze(document: Document, random: Random) -> None:
    rank = random.randrange(3)
    document["memory_limit"][rank] = document["report"]["peak_memory"][rank] * 0.999


def misreport(document: Document, random: Random) -> None:
    key = random.choice(["period", "makespan", "bubble_rate"])
    document["report"][key] += 0.001


def boast(document: Document, random: Random) -> None:
    cost = document["report"]["period"]
    bound = cost * random.choice([0.99, 1.01])
    document["report"] |= {"lower_bound": bound, "gap": 0.0, "status": "optimal"}


def _some_row(document: Document, random: Random) -> list[Document]:
    row: list[Document] = random.choice(document["order"])
    return row


PROFILE = Profile(
    (StageProfile(1.0, 1.3, 0.7, 2.0, 1.0), StageProfile(1.1, 0.9, 0.6, 3.0, 2.0), StageProfile(0.8, 1.2, 0.5)),  # noqa: E501
    3,
    t_comm=((0.0, 0.1, 0.2), (0.3, 0.0, 0.15), (0.25, 0.35, 0.0)),
    memory_limit=(50.0, 50.0, 50.0),
)  # fmt: skip
DOCUMENTS = {name: through_text(build_family(name, PROFILE, 3)) for name in families_of(3)}


@pytest.mark.parametrize(
    "mutate", [drop, repeat, shift, stretch, swap, rename, move, squeeze, misreport, boast]
)
@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_change_is_noticed(name: str, mutate: Any) -> None:
    for seed in range(12):
        document = copy.deepcopy(DOCUMENTS[name])
        assert verify_schedule(document) == []
        mutate(document, Random(seed))
        assert verify_schedule(document) != [], seed
