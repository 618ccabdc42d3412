"""What the gradient tests of travelling weights run on every rank, and the schedules that they try.

**To add schedules**: a function from the number of ranks to a dict of plans, in :data:`TABLES`. A
plan makes a schedule of a profile and a number of microbatches; its name says what it is. Each is
tried with M = P, 2P and 3P + 1, in both dtypes, on 2, 3, 4 and 8 ranks. The ordinary suite has each
plan in float64 (families, and what mixes all kinds, in float32, too) with one of these counts each,
in turn, on 2, 3 and 4 ranks, and :data:`ON_EIGHT`, families and what is optimized, on 8; the others
are marked slow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from pipeloom.ir.cost.simulator import timed
from pipeloom.ir.model.ops import FloatArray, Op, OpKind, pack
from pipeloom.ir.model.placement import Passing, Placement
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Link, Links, Profile, Sharing, StageProfile
from pipeloom.ir.model.program import Program
from pipeloom.ir.model.schedule import Schedule, Transfer, TransferKind
from pipeloom.runtime.pipeline.pipeline import Pipeline
from pipeloom.runtime.rank.options import StagesAs
from pipeloom.solver.families import build_family
from pipeloom.solver.optimize import optimize
from pipeloom.solver.weight_passing.replicate import replicate
from pipeloom.solver.weight_passing.round_orders import rows
from pipeloom.solver.weight_passing.streaming import Route, Streaming, streamed
from tests.support.families import REPLICATED, TRAVELLING, fits
from tests.support.models import TinyTransformer, gradient, named
from tests.support.random_schedules import random_order

BOUNDS = {torch.float32: 1e-6, torch.float64: 1e-12}
STEPS = 2
ON_EIGHT = ("weipipe-interleave", "fsdp", "optimized")  # in float32, too

Plan: TypeAlias = Callable[[Profile, int], Schedule]


def family_plans(ranks: int) -> dict[str, Plan]:
    """Every family in which weights travel."""
    names = [name for name in (*TRAVELLING, "fsdp:0") if fits(name, ranks)]
    return {name: partial(build_family, name) for name in names}


def interleave_plans(ranks: int) -> dict[str, Plan]:
    """Interleave's ops with other transfers, and with B and W apart."""

    def changed(change: Callable[[Schedule], Schedule]) -> Plan:
        return lambda profile, count: change(build_family("weipipe-interleave", profile, count))

    return {
        "interleave without waiting": changed(without_waiting),
        "interleave with B and W apart": changed(split),
    }


def mixed_plans(ranks: int) -> dict[str, Plan]:
    """Activations, weights and gradients travel in one program."""
    plans: dict[str, Plan] = {"any rank for any op": anywhere, "replicated ends": replicated_ends}
    return plans if ranks == 2 else plans | {"by way of a bystander": by_way}


def replicated_plans(ranks: int) -> dict[str, Plan]:
    """Activations alone travel, and every stage is on two ranks."""
    names = [name for name in REPLICATED if fits(name, ranks)]
    return {name: partial(in_pairs, name) for name in names}


def in_pairs(name: str, profile: Profile, count: int) -> Schedule:
    """Where it is known how long a pair takes; ``chimera`` has none."""
    stages = tuple(replace(stage, t_fb=stage.t_f + stage.t_b) for stage in profile.stages)
    return build_family(name, replace(profile, stages=stages), count)


def optimized_plans(ranks: int) -> dict[str, Plan]:
    """What the optimizer finds, and other routes and collections of D than it may choose."""
    rounds, slow = 2, Links(Link(0.1, 1.0), shared=Sharing.RING)
    return {
        "optimized": optimized,
        "optimized in little memory": partial(optimized, microbatches_held=1),
        "optimized on a ring": partial(optimized, links=slow, objective=Objective.MAKESPAN),
        "round the ring": partial(routed, rounds, Streaming(1, Route.ONE_WAY, rounds, lead=0)),
        "fanned out": partial(routed, rounds, Streaming(3, Route.FAN, home=Route.BOTH_WAYS)),
    }


def optimized(
    profile: Profile,
    count: int,
    *,
    microbatches_held: int | None = None,
    links: Links | None = None,
    objective: Objective = Objective.PERIOD,
) -> Schedule:
    held = sum(stage.m_b for stage in profile.stages)
    limit = None if microbatches_held is None else microbatches_held * held
    profile = replace(profile, links=links)
    placement = Placement.round_robin(profile.ranks)
    problem = Problem(profile, count, placement, profile.limit_from(limit), objective)
    return optimize(problem, work_limit=0.5)


def routed(rounds: int, plan: Streaming, profile: Profile, count: int) -> Schedule:
    placement = Placement.round_robin(profile.ranks)
    problem = Problem(profile, count, placement, profile.limit_from(None))
    return streamed(problem, rows(problem, rounds, deep=1), plan)


TABLES: tuple[Callable[[int], dict[str, Plan]], ...] = (
    family_plans,
    interleave_plans,
    mixed_plans,
    replicated_plans,
    optimized_plans,
)


def without_waiting(schedule: Schedule) -> Schedule:
    """Weights go on as soon as they come; no op waits for D, which takes what was kept for it."""

    def change(transfer: Transfer) -> Transfer:
        if transfer.kind is TransferKind.WEIGHT:
            return replace(transfer, after=0, room=0)
        return replace(transfer, before=len(schedule.order[transfer.target]))

    return timed(replace(schedule, transfers=tuple(map(change, schedule.transfers))))


def split(schedule: Schedule) -> Schedule:
    """B and W apart."""
    rows = [_split(schedule.ops(rank)) for rank in range(schedule.problem.ranks)]
    done = [_positions(schedule.ops(rank), row) for rank, row in enumerate(rows)]

    def change(t: Transfer) -> Transfer:
        return replace(
            t,
            after=done[t.source][t.after],
            room=done[t.target][t.room],
            before=rows[t.target].index(_first(schedule.ops(t.target)[t.before]))
            if t.before < len(schedule.order[t.target])
            else len(rows[t.target]),
        )

    changed = Schedule.of(schedule.problem, rows, "split")
    return timed(replace(changed, transfers=tuple(map(change, schedule.transfers))))


def _split(ops: list[Op]) -> list[Op]:
    row: list[Op] = []
    for op in ops:
        if op.kind is OpKind.BW:
            row += [_first(op), replace(op, kind=OpKind.W)]
        else:
            row.append(op)
    return row


def _first(op: Op) -> Op:
    return replace(op, kind=OpKind.B) if op.kind is OpKind.BW else op


def _positions(ops: list[Op], row: list[Op]) -> list[int]:
    """How many ops of ``row`` are done when the first 0, 1, ... of ``ops`` are."""
    last = [replace(op, kind=OpKind.W) if op.kind is OpKind.BW else op for op in ops]
    return [0, *(row.index(op) + 1 for op in last)]


def anywhere(profile: Profile, count: int) -> Schedule:
    """Each stage of each microbatch on a rank taken at random, in an order taken at random."""
    random = Random(count)
    owners = [random.randrange(profile.ranks) for _ in range(profile.num_stages * count)]
    owner = np.reshape(owners, (profile.num_stages, count))
    placement = Placement.of_ops(Passing.MIXED, profile.ranks, owner)
    problem = Problem(profile, count, placement, profile.limit_from(None))
    order = [pack(ops) for ops in random_order(problem, 0.5, random)]
    return streamed(problem, order, Streaming())


def replicated_ends(profile: Profile, count: int) -> Schedule:
    """Weights travel, but for those of the first and the last stage, which all ranks have."""
    schedule = build_family("weipipe-interleave", profile, count)
    return replicate(schedule, [0, profile.num_stages - 1])


def by_way(profile: Profile, count: int) -> Schedule:
    """All goes by way of rank 1, which runs and owns nothing."""
    others = [rank for rank in range(profile.ranks) if rank != 1]
    runs = np.array([[others[j % len(others)] for j in range(count)]])
    placement = Placement.of_ops(Passing.WEIGHTS, profile.ranks, runs)
    problem = Problem(profile, count, placement, profile.limit_from(None))
    rows: list[list[Op]] = [[] for _ in range(profile.ranks)]
    for j, rank in enumerate(runs[0].tolist()):
        stages = range(profile.num_stages)
        rows[rank] += [Op(OpKind.F, s, j) for s in stages]
        rows[rank] += [Op(OpKind.BW, s, j) for s in reversed(stages)]
    owner = [others[s % len(others)] for s in range(profile.num_stages)]
    straight = streamed(problem, list(map(pack, rows)), Streaming(), owner)
    hops = [
        hop
        for t in straight.transfers
        for hop in (
            replace(t, target=1, before=0, room=0),
            replace(t, source=1, after=0, blocks=None),
        )
    ]
    return timed(replace(straight, transfers=tuple(hops)))


@dataclass(frozen=True)
class Case:
    """One schedule on one model."""

    plan: str
    ranks: int
    microbatches: int
    dtype: torch.dtype
    stages: int
    memory: bool = True
    slow: bool = False
    stages_as: StagesAs = "eager"

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        graphs = "" if self.stages_as == "eager" else f"-{self.stages_as}"
        return f"{self.plan}-{self.stages}on{self.ranks}x{self.microbatches}-{dtype}{graphs}"

    @property
    def source(self) -> TinyTransformer:
        return TinyTransformer(self.dtype, uneven=True)


@dataclass(frozen=True)
class Outcome:
    """On one rank, of what it owns: the first step's gradients, the parameters after the last."""

    gradients: dict[str, FloatArray]
    parameters: dict[str, FloatArray]
    losses: list[float]
    peak_memory: int


def cases(ranks: int) -> list[Case]:
    """Each plan with M = P, 2P and 3P + 1; interleave with fewer, some with more stages than
    ranks."""
    counts = (ranks, 2 * ranks, 3 * ranks + 1)
    found = [
        Case(
            name,
            ranks,
            count,
            dtype,
            ranks,
            memory=count != 2 * ranks,
            slow=not _chosen(name, ranks, dtype, at, i + ranks),
        )
        for i, name in enumerate(plans(ranks))
        for dtype in (torch.float64, torch.float32)
        for at, count in enumerate(counts)
    ]
    if ranks < 8:
        many = ("fsdp", "any rank for any op")
        found += [Case(name, ranks, ranks + 1, torch.float64, 2 * ranks + 1) for name in many]
        found.append(Case("weipipe-interleave", ranks, ranks - 1, torch.float64, ranks))
    return found


def _chosen(name: str, ranks: int, dtype: torch.dtype, at: int, turn: int) -> bool:
    """Whether the case is in the ordinary suite; float32 says something of what is sent, and of
    sums, not of the plan: few ranks do."""
    if ranks == 8:
        return _on_eight(name, dtype, at, turn)
    both = ranks < 4 and name in (*family_plans(ranks), *mixed_plans(ranks), *ON_EIGHT)
    return (both or dtype is torch.float64) and _in_turn(name, dtype, at, turn)


def _in_turn(name: str, dtype: torch.dtype, at: int, turn: int) -> bool:
    """Whether the count at ``at`` is tried of a plan in the ordinary suite; of interleave all but
    one."""
    if name == "weipipe-interleave":
        return at != 1
    return at == (turn + (dtype is torch.float32)) % 3


def _on_eight(name: str, dtype: torch.dtype, at: int, turn: int) -> bool:
    """Many processes, unless the case is one that nothing smaller stands for."""
    if dtype is torch.float32:
        return at == 0 and name in ON_EIGHT
    return at == 0 and (
        name in (*family_plans(8), *replicated_plans(8)) or name.startswith("optimized")
    )


def plans(ranks: int) -> dict[str, Plan]:
    return {name: plan for table in TABLES for name, plan in table(ranks).items()}


def schedule(case: Case) -> Schedule:
    """Stages with odd numbers are twice as large, as the model's are."""
    stages = tuple(
        StageProfile(2.0 * n, 2.0 * n, 1.5 * n, activation_bytes=1e3, weight_bytes=1e6 * n)
        for n in (1 + s % 2 for s in range(case.stages))
    )
    return plans(case.ranks)[case.plan](Profile(stages, case.ranks, t_comm=0.1), case.microbatches)


def run_cases(chosen: Sequence[tuple[Case, Program]]) -> list[Outcome]:
    """On every rank of one launch."""
    return [run_case(case, program) for case, program in chosen]


def run_case(case: Case, program: Program) -> Outcome:
    source, verify = case.source, dist.get_rank() == 0
    pipeline = Pipeline.from_source(
        program, source, memory=case.memory, verify=verify, stages_as=case.stages_as
    )
    losses: list[Tensor] = []
    gradients: dict[str, FloatArray] = {}
    for step in range(STEPS):
        inputs, targets = source.batch(step, case.microbatches)
        pipeline.step(inputs, target=targets, losses=losses)
        gradients = gradients or _arrays(pipeline, gradient)
    pipeline.close()
    return Outcome(
        gradients,
        _arrays(pipeline, Tensor.detach),
        [loss.item() for loss in losses],
        pipeline.peak_memory,
    )


def _arrays(pipeline: Pipeline, read: Callable[[Tensor], Tensor | None]) -> dict[str, FloatArray]:
    return {name: np.array(value) for name, value in named(pipeline.modules, read).items()}
