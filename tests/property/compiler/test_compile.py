"""Any valid schedule compiles to a program that runs, in whatever order its ranks advance."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Any

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeloom.compiler import compile_schedule, passes
from pipeloom.compiler.passes.compute import compute
from pipeloom.compiler.passes.deadlock_check import prove
from pipeloom.compiler.passes.receive_buffers import free_received
from pipeloom.compiler.passes.reduce_gradients import tied_groups
from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.cost.memory_footprint import footprint
from pipeloom.ir.errors import InvalidScheduleError
from pipeloom.ir.formats.program_json import dump_program
from pipeloom.ir.model.program import (
    Compute,
    Free,
    Instruction,
    Program,
    Receive,
    Send,
    Step,
    Tensor,
    TensorKind,
    WaitReceive,
    WaitSend,
)
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.verify.channels import verify_channels
from pipeloom.ir.verify.program import verify_program
from pipeloom.ir.verify.program_facts import read_program
from tests.support.machine import DeadlockError, Machine
from tests.support.program_footprint import passing_of
from tests.support.random_schedules import schedules

SEEDS = st.integers(0, 2**32)


def tied_in(schedule: Schedule) -> list[tuple[int, int]]:
    """The first stage with the last one and with the second, where there are three."""
    last = schedule.problem.stages - 1
    return [(0, last), (1, 0)] if last > 1 else []


def document(program: Program) -> dict[str, Any]:
    """``program`` as it is read from a file."""
    return json.loads(json.dumps(dump_program(program)))  # type: ignore[no-any-return]


@given(schedules(), SEEDS)
def test_the_program_of_a_valid_schedule_runs(schedule: Schedule, seed: int) -> None:
    program = compile_schedule(schedule, tied=tied_in(schedule))
    found = footprint(schedule)
    timing = program.schedule.known_timing
    assert (found.activations, found.passing) == (timing.peak_memory, passing_of(program))
    machine = Machine(program)
    machine.run(Random(seed))
    owners = schedule.problem.placement.owners
    for rank in range(schedule.problem.ranks):
        mine = [s for s, owner in enumerate(owners) if owner == rank]
        assert machine.ran[rank] == set(schedule.ops(rank))
        assert not machine.content[rank], "buffers left taken"
        assert machine.stepped[rank] == mine
        groups = sorted(tuple(sorted(group)) for group in tied_in(schedule))
        assert [r.stages for r in machine.reduced[rank]] == [
            group for group in groups if set(group) & set(mine)
        ]


@given(schedules())
def test_the_verifier_accepts_what_each_pass_makes(schedule: Schedule) -> None:
    """From the pass on that makes programs whole: the one that frees."""
    program = compute(schedule)
    whole = False
    for lower in passes(tied_groups(tied_in(schedule), schedule.problem.stages)):
        program = lower(program)
        whole = whole or lower is free_received
        if whole:
            assert verify_program(document(program)) == []
    assert whole


@given(schedules(), SEEDS)
def test_every_pass_leaves_a_program_that_runs(schedule: Schedule, seed: int) -> None:
    program = compute(schedule)
    for lower in passes():
        program = lower(program)
        Machine(program).run(Random(seed))


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
    """When each rank gets to its ``kind``: at the end of the op before; never, after a step."""
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


def dependencies(rows: Iterable[tuple[Instruction, ...]]) -> nx.DiGraph:
    """The graph of ``docs/program.md``, edge by edge."""
    graph = nx.DiGraph()
    ends: dict[tuple[str, object], object] = {}
    for rank, row in enumerate(rows):
        for i, item in enumerate(row):
            graph.add_node((rank, i), item=item)
            if i:
                graph.add_edge((rank, i - 1), (rank, i))
            if isinstance(item, Send | Receive):
                ends[type(item).__name__, item.tensor] = rank, i
    for node, item in list(graph.nodes(data="item")):
        if isinstance(item, WaitSend | WaitReceive):
            graph.add_edge(ends["Send", item.tensor], node)
            graph.add_edge(ends["Receive", item.tensor], node)
    return graph


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
    """There the graph has a cycle, the verifier finds a fault, and no rank can go on."""
    program = compile_schedule(schedule)
    rows = tuple(map(tuple, shuffled(program, Random(seed))))
    changed = Program(program.schedule, rows, program.buffers)
    facts = read_program(document(changed), "program")
    assert facts is not None
    if nx.is_directed_acyclic_graph(dependencies(rows)):
        prove(changed)
        assert list(verify_channels(facts)) == []
        Waits(changed).run(Random(seed))
    else:
        with pytest.raises(InvalidScheduleError, match="deadlock: rank"):
            prove(changed)
        assert verify_program(document(changed))
        with pytest.raises(DeadlockError):
            Waits(changed).run(Random(seed))


class Waits(Machine):
    """A machine that looks at nothing but who waits for whom."""

    def do(self, rank: int, item: Instruction) -> None:
        if isinstance(item, Send):
            self.sent[rank, item.target].append(item.tensor)
            self.carry(rank, item.target)
        elif isinstance(item, Receive):
            self.asked[item.source, rank].append((item.tensor, item.buffer))
            self.carry(item.source, rank)
