"""Whatever the ranks, microbatches, times and links: weight passing verifies, compiles and runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from pipeloom.compiler import compile_schedule
from pipeloom.ir.cost.simulator import simulate, timed
from pipeloom.ir.cost.transfer_order import in_sending_order
from pipeloom.ir.errors import InvalidScheduleError
from pipeloom.ir.formats import dump_schedule, parse_schedule
from pipeloom.ir.model.links import Groups, Link, Links, Sharing
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule, Transfer, TransferKind
from pipeloom.ir.model.transfers import journeys, previous
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.solver.families import build_family
from tests.support.families import TRAVELLING, fits
from tests.support.plain_wires import listed_times
from tests.support.posted import posted_between_ops
from tests.support.weight_machine import WeightMachine, run_compiled

TIMES = st.sampled_from([0.0, 0.1, 1.0, 1.7, 3.0])
SEEDS = st.integers(0, 2**32)


def sharing(ranks: int) -> st.SearchStrategy[Sharing | Groups]:
    """Any way of sharing wires, a few random groups among them."""
    apart = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    groups = (
        st.lists(st.lists(st.sampled_from(apart)).map(tuple)).map(tuple) if apart else st.just(())
    )
    return st.sampled_from(Sharing) | groups


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    ranks = draw(st.integers(1, 5))
    stages = [
        StageProfile(*draw(st.tuples(TIMES, TIMES, TIMES)), weight_bytes=draw(TIMES) * 1e6)
        for _ in range(ranks)
    ]
    links = draw(
        st.none() | st.builds(Links, st.builds(Link, TIMES, st.just(1.0)), shared=sharing(ranks))
    )
    return Profile(tuple(stages), ranks, t_comm=draw(TIMES), links=links, shared_by=1)


def early_weights(transfer: Transfer, random: Random, ops: list[int]) -> Transfer:
    """Goes on as soon as it has come, or at any time until the family would send it."""
    if transfer.kind is TransferKind.GRADIENT:
        return transfer
    return replace(transfer, after=random.randint(0, transfer.after))


def late_gradients(transfer: Transfer, random: Random, ops: list[int]) -> Transfer:
    """No op waits for D: what it is to collect is kept until it comes."""
    if transfer.kind is TransferKind.WEIGHT:
        return transfer
    return replace(transfer, before=random.choice([transfer.before, ops[transfer.target]]))


def more_room(transfer: Transfer, random: Random, ops: list[int]) -> Transfer:
    return replace(transfer, room=random.randint(0, transfer.room))


Change = Callable[[Transfer, Random, list[int]], Transfer]


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """The families' schedules, and others with the same ops that wait for less."""
    profile = draw(profiles())
    names = [name for name in (*TRAVELLING, "fsdp:0") if fits(name, profile.ranks)]
    schedule = build_family(draw(st.sampled_from(names)), profile, draw(st.integers(1, 11)))
    changes: list[Change] = draw(
        st.lists(st.sampled_from([early_weights, late_gradients, more_room]), unique=True)
    )
    random, transfers = Random(draw(SEEDS)), schedule.transfers
    ops = [len(row) for row in schedule.order]
    for change in changes:
        transfers = tuple(change(transfer, random, ops) for transfer in transfers)
    return timed(replace(schedule, transfers=transfers))


@given(schedules())
def test_a_schedule_and_its_file_are_valid(schedule: Schedule) -> None:
    document = dump_schedule(schedule)
    assert verify_schedule(document) == []
    assert dump_schedule(timed(parse_schedule(document, "file"))) == document


@given(schedules(), SEEDS)
def test_its_program_runs_and_collects_every_gradient_once(schedule: Schedule, seed: int) -> None:
    run_compiled(schedule, seed)


def changed_at_random(transfer: Transfer, schedule: Schedule, random: Random) -> list[Transfer]:
    """Left out, or with one thing about it changed."""
    here, there = (len(schedule.order[rank]) for rank in (transfer.source, transfer.target))
    ranks = schedule.problem.ranks
    return random.choice(
        [
            [],
            [replace(transfer, after=random.randint(0, here))],
            [replace(transfer, before=random.randint(0, there))],
            [replace(transfer, room=random.randint(0, there))],
            [replace(transfer, blocks=random.randint(0, here))],
            [replace(transfer, copy=5)],
            [replace(transfer, stage=random.randrange(ranks))],
            [replace(transfer, target=random.randrange(ranks))],
        ]
    )


@given(schedules(), SEEDS)
def test_a_random_change_is_noticed_or_harmless(schedule: Schedule, seed: int) -> None:
    """The verifier, which sees positions and times alone, agrees with the machine."""
    random = Random(seed)
    if not schedule.transfers:
        return
    transfers = list(schedule.transfers)
    at = random.randrange(len(transfers))
    transfers[at : at + 1] = changed_at_random(transfers[at], schedule, random)
    changed = replace(schedule, transfers=tuple(transfers), timing=None)
    try:
        changed = replace(changed, timing=simulate(changed))
    except InvalidScheduleError:
        return
    if verify_schedule(dump_schedule(changed)):
        return
    machine = WeightMachine(compile_schedule(changed))
    machine.run(Random(seed))
    everything = frozenset(range(schedule.problem.microbatches))
    assert set(machine.total.values()) == {everything}


@given(schedules())
def test_transfers_start_when_plain_loops_say(schedule: Schedule) -> None:
    assume(schedule.problem.placement.passing is Passing.WEIGHTS)
    found = schedule.known_timing.transfers
    expected = np.array(listed_times(schedule)).reshape(-1, 2)
    assert np.allclose(found, expected, rtol=1e-12, atol=1e-12)


@given(schedules(), SEEDS)
def test_sending_order_runs_whatever_the_list_was(schedule: Schedule, seed: int) -> None:
    """However the items are listed, each in its own order: first come, first served is one
    order."""
    random, transfers = Random(seed), schedule.transfers
    waiting = [deque(indices) for indices in journeys(transfers).values()]
    mixed = []
    while waiting:
        item = random.choice(waiting)
        mixed.append(transfers[item.popleft()])
        waiting = [item for item in waiting if item]
    listed = in_sending_order(replace(schedule, transfers=tuple(mixed), timing=None))
    assert verify_schedule(dump_schedule(timed(listed))) == []
    again = in_sending_order(listed)
    assert np.array_equal(simulate(again).transfers, simulate(listed).transfers)


@given(schedules())
def test_passing_on_between_ops_never_deadlocks_nor_hurries(schedule: Schedule) -> None:
    between = simulate(posted_between_ops(schedule))
    planned = schedule.known_timing
    for later, earlier in zip(between.start, planned.start, strict=True):
        assert np.all(later >= earlier - 1e-9)
    assert np.all(between.transfers >= planned.transfers - 1e-9)
    for x, earlier_one in enumerate(previous(schedule.transfers)):
        if earlier_one is not None:
            rank, leaves = schedule.transfers[x].source, planned.transfers[x, 0]
            under_way = (planned.start[rank] < leaves) & (leaves < planned.end[rank])
            assert np.all(between.transfers[x, 0] >= between.end[rank][under_way])
