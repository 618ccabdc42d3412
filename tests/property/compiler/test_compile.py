"""Any valid schedule compiles to a program that runs, in any order of its ranks."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import given

from pipeloom.compiler import compile_schedule
from pipeloom.compiler.passes.deadlock_check import prove
from pipeloom.ir import (
    Compute,
    Costs,
    Free,
    Instruction,
    InvalidScheduleError,
    OpKind,
    Placement,
    Problem,
    Profile,
    Program,
    Receive,
    Relay,
    RelayKind,
    Schedule,
    Send,
    StageProfile,
    Step,
    Tensor,
    TensorKind,
    WaitReceive,
    WaitSend,
    dump_program,
    parse_instruction,
    verify_program,
)
from pipeloom.ir.verify.channels import verify_channels
from pipeloom.ir.verify.program_facts import read_program
from pipeloom.solver import Route, Streaming, build_family, solve, streamed
from tests.support.by_hand import by_hand
from tests.support.families import RINGS
from tests.support.machine import DeadlockError, Machine, run_compiled
from tests.support.random_schedules import SEEDS, schedules

# any valid schedule compiles to a program that runs, in any order of its ranks
# ---------------------


def tied_in(schedule: Schedule) -> list[tuple[int, int]]:
    """The first stage with the last one, and with the second if there are three."""
    last = schedule.problem.stages - 1
    return [(0, last), (1, 0)] if last > 1 else []


def document(program: Program) -> dict[str, Any]:
    """``program`` as it would be read from a file."""
    return json.loads(json.dumps(dump_program(program)))  # type: ignore[no-any-return]


@given(schedules(), SEEDS)
def test_the_program_of_a_valid_schedule_runs(schedule: Schedule, seed: int) -> None:
    run_compiled(schedule, seed, tied_in(schedule))


@given(schedules())
def test_buffers_are_as_many_as_are_live_at_once(schedule: Schedule) -> None:
    program = compile_schedule(schedule)
    for row, buffers in zip(program.instructions, program.buffers, strict=True):
        live: Counter[tuple[object, int]] = Counter()
        most: Counter[tuple[object, int]] = Counter()
        for item in row:
            if isinstance(item, Receive | Free):
                key = item.tensor.kind, item.tensor.stage
                live[key] += 1 if isinstance(item, Receive) else -1
                most[key] = max(most[key], live[key])
        assert Counter((buffer.kind, buffer.stage) for buffer in buffers) == most


@given(schedules())
def test_no_send_waits_as_planned(schedule: Schedule) -> None:
    """Receives are posted before their sends; sends are waited for after they arrive."""
    program = compile_schedule(schedule)
    receives, sends, waits = (planned(program, kind) for kind in (Receive, Send, WaitSend))
    assert receives.keys() == sends.keys() == waits.keys()
    costs = Costs.of(schedule.problem)
    for tensor, sent in sends.items():
        into = costs.into_f if tensor.kind is TensorKind.X else costs.into_b
        assert receives[tensor] < sent
        assert waits[tensor] >= sent + into[tensor.stage, tensor.index]


def planned(program: Program, kind: type[Instruction]) -> dict[Tensor, float]:
    """The time at which each rank reaches its ``kind``: the end of the op before it; infinite after
    a step."""
    timing = program.schedule.known_timing
    found = {}
    for row, ends in zip(program.instructions, timing.end, strict=True):
        now, clock = -math.inf, iter(ends.tolist())
        for item in row:
            if isinstance(item, Compute):
                now = next(clock)
            elif isinstance(item, Step):
                now = math.inf
            elif isinstance(item, kind):
                found[item.tensor] = now
    return found


def shuffled(program: Program, random: Random) -> list[list[Instruction]]:
    """The program with some waits and receives moved, each channel's order kept."""
    rows = [list(row) for row in program.instructions]
    for row in rows:
        for _ in range(random.randrange(4)):
            movable = [i for i, item in enumerate(row) if isinstance(item, WaitSend | WaitReceive)]
            if movable:
                item = row.pop(random.choice(movable))
                row.insert(random.randrange(len(row) + 1), item)
        receives = [item for item in row if isinstance(item, Receive)]
        if random.random() < 0.5:
            others = [item for item in row if not isinstance(item, Receive)]
            spots = sorted(random.randrange(len(others) + 1) for _ in receives)
            for spot, item in zip(reversed(spots), reversed(receives), strict=True):
                others.insert(spot, item)
            row[:] = others
    return rows


@given(schedules(), SEEDS)
def test_the_proof_fails_exactly_where_ranks_deadlock(schedule: Schedule, seed: int) -> None:
    """In these cases the verifier finds a fault, and no rank can continue."""
    program = compile_schedule(schedule)
    rows = tuple(map(tuple, shuffled(program, Random(seed))))
    changed = Program(program.schedule, rows, program.buffers)
    facts = read_program(document(changed), "program")
    assert facts is not None
    try:
        Waits(changed).run(Random(seed))
    except DeadlockError:
        with pytest.raises(InvalidScheduleError, match="deadlock: rank"):
            prove(changed)
        assert verify_program(document(changed))
        return
    prove(changed)
    assert list(verify_channels(facts)) == []


class Waits(Machine):
    """A machine that only tracks which rank waits for which."""

    def do(self, rank: int, item: Instruction) -> None:
        if isinstance(item, Send):
            self.sent[rank, item.target].append(item.tensor)
            self.carry(rank, item.target)
        elif isinstance(item, Receive):
            self.asked[item.source, rank].append((item.tensor, item.buffer))
            self.carry(item.source, rank)


# any schedule that passes activations can relay norms, and ops before the verdict can be rerun
# ------


Row = tuple[Instruction, ...]


def cut(row: Row) -> tuple[Row, Row]:
    """The part before the verdict, and the part after it."""
    at = next(
        (i for i, x in enumerate(row) if isinstance(x, Relay) and x.kind is RelayKind.VERDICT), None
    )
    return ((), row) if at is None else (row[:at], row[at + 1 :])


@given(schedules(), SEEDS)
def test_relays_keep_what_holds_of_programs(schedule: Schedule, seed: int) -> None:
    program = compile_schedule(schedule, post_validation=True)
    assert verify_program(dump_program(program)) == []
    machine = Machine(program)
    machine.run(Random(seed))
    assert not any(machine.content), "buffers left taken"
    plain = compile_schedule(schedule)
    assert program.buffers == plain.buffers
    for row, before in zip(program.instructions, plain.instructions, strict=True):
        rest = [item for item in row if not isinstance(item, Relay)]
        assert sorted(map(str, rest)) == sorted(map(str, before))


@given(schedules())
def test_as_many_forwards_as_can_be_come_before_the_verdict(schedule: Schedule) -> None:
    rows = compile_schedule(schedule, post_validation=True).instructions
    heads = [cut(row)[0] for row in rows]
    ran = {item.op for head in heads for item in head if isinstance(item, Compute)}
    for row, head in zip(rows, heads, strict=True):
        relays = [item for item in row if isinstance(item, Relay)]
        rest = [item.op for item in row[len(head) :] if isinstance(item, Compute)]
        if not relays or relays[0].source is None or not rest:
            continue
        op = rest[0]
        fed = op.stage == 0 or replace(op, stage=op.stage - 1) in ran
        assert op.kind is not OpKind.F or not fed


# the messages of the proof: the cycle of waits in a program, or the violated order
# ------------------


def program(*rows: str) -> Program:
    profile = Profile((StageProfile(1.0, 1.0, 1.0),) * len(rows), len(rows))
    schedule = Schedule.of(Problem.linear(profile, 1), [[] for _ in rows], "none")
    instructions = tuple(tuple(map(parse_instruction, row.split("; "))) for row in rows)
    return Program(schedule, instructions, ((),) * len(rows))


STUCK = {
    "one that only waits for the circle": (
        [
            "recv x1.0 from 1 into 0; wait recv x1.0",
            "recv x2.0 from 2 into 0; wait recv x2.0; send x1.0 to 0; send x3.0 to 2",
            "recv x3.0 from 1 into 0; wait recv x3.0; send x2.0 to 1",
        ],
        "deadlock: "
        "rank 1 stops at 'wait recv x2.0' until rank 2 does 'send x2.0 to 1'; "
        "rank 2 stops at 'wait recv x3.0' until rank 1 does 'send x3.0 to 2'",
    ),
    "reduces in different orders": (
        ["reduce 0 1; reduce 0 1 2", "reduce 0 1 2; reduce 0 1"],
        "deadlock: rank 0 stops at 'reduce 0 1' until rank 1 does 'reduce 0 1'; "
        "rank 1 stops at 'reduce 0 1 2' until rank 0 does 'reduce 0 1 2'",
    ),
    "receives in another order than their sends": (
        ["send x1.0 to 1; send x1.1 to 1", "recv x1.1 from 0 into 0; recv x1.0 from 0 into 1"],
        "channel 0 -> 1: message 0 is sent as x1.0 and received as x1.1",
    ),
}


@pytest.mark.parametrize("name", STUCK)
def test_the_proof_says_what_a_program_is_caught_in(name: str) -> None:
    rows, violation = STUCK[name]
    with pytest.raises(InvalidScheduleError) as caught:
        prove(program(*rows))
    assert caught.value.violations == (violation,)


# refused by the compiler
# ----------------------------------------------------------------------------


def test_no_rank_steps_ahead_where_there_is_one() -> None:
    """If weights are sent this is refused: ``tests/parity/conflicts.txt``."""
    row = compile_schedule(by_hand("0F0 0BW0"), post_validation=True).instructions[0]
    assert list(map(str, row)) == ["0F0", "0BW0", "step 0"]


def test_a_transfer_leaves_the_rank_that_its_item_is_on() -> None:
    profile = Profile((StageProfile(1.0, 1.0, 1.0, weight_bytes=1.0),) * 3, 3, t_comm=0.1)
    plan = build_family("weipipe-interleave", profile, 3)
    compile_schedule(plan)
    again = replace(plan, transfers=(*plan.transfers, plan.transfers[-2]), timing=None)
    with pytest.raises(InvalidScheduleError, match=r"^transfers\[\d+\] .*, its copy is on rank \d"):
        compile_schedule(again)
    first = replace(plan.transfers[0], target=plan.transfers[0].source)
    itself = replace(plan, transfers=(first, *plan.transfers[1:]), timing=None)
    with pytest.raises(InvalidScheduleError, match=r"^transfers\[0\] .*: expected two ranks, got"):
        compile_schedule(itself)


# receives of weights are posted before the compute that precedes their use ------------------------


RANKS, MICROBATCHES = 4, 12
PROFILE = Profile((StageProfile(1.0, 1.0, 1.0, weight_bytes=1e6),) * RANKS, RANKS, t_comm=0.25)


def computes_between(row: tuple[Instruction, ...]) -> list[int]:
    """For each wait for weights, the number of ops between the post of its receive and it.

    Weights that arrive before the rank's first op or after its last are ignored.
    """
    posted, found, ops = {}, [], 0
    last = max(i for i, item in enumerate(row) if isinstance(item, Compute))
    for item in row[:last]:
        if isinstance(item, Compute):
            ops += 1
        elif isinstance(item, Receive) and item.tensor.kind is TensorKind.WEIGHT:
            posted[item.tensor] = ops
        elif isinstance(item, WaitReceive) and item.tensor in posted and ops > 0:
            found.append(ops - posted[item.tensor])
    return found


INTERLEAVE = build_family("weipipe-interleave", PROFILE, MICROBATCHES)


def optimized() -> Schedule:
    profile = Profile(PROFILE.stages[:1] * 12, 12, t_comm=0.25)
    placement = Placement.round_robin(12)
    return solve(Problem(profile, 36, placement, profile.limit_from(None)), work_limit=0.5)


@pytest.mark.parametrize(
    "make",
    [
        optimized,
        *(partial(build_family, name, PROFILE, MICROBATCHES) for name in (*RINGS, "fsdp:1")),
        *(
            partial(streamed, INTERLEAVE.problem, INTERLEAVE.order, Streaming(2, route))
            for route in (Route.DIRECT, Route.BOTH_WAYS)
        ),
    ],
)
def test_a_compute_runs_between_the_post_of_a_receive_and_its_wait(
    make: Callable[[], Schedule],
) -> None:
    for row in compile_schedule(make()).instructions:
        between = computes_between(row)
        assert between
        assert min(between) >= 1


def test_without_prefetch_they_are_posted_when_they_are_needed() -> None:
    program = compile_schedule(build_family("fsdp:0", PROFILE, MICROBATCHES))
    assert all(max(computes_between(row)) == 0 for row in program.instructions)
