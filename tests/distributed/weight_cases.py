"""What the weight-passing gradient tests run on every rank, and the schedules that they try."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pipeloom.compiler import compile_schedule
from pipeloom.ir.ops import Op, OpKind
from pipeloom.ir.profile import Profile, StageProfile
from pipeloom.ir.schedule import Schedule, Transfer, TravelKind
from pipeloom.ir.simulate import timed
from pipeloom.runtime.pipeline import Pipeline
from pipeloom.solver.families import build_family
from tests.distributed.gradient_cases import difference
from tests.families import TRAVELLING, fits
from tests.models import TinyTransformer, reference

BOUNDS = {torch.float32: 1e-6, torch.float64: 1e-12}
# below, at, just above and well above the number of ranks
MICROBATCHES = {2: (1, 2, 3, 8), 3: (2, 3, 4, 7), 4: (3, 4, 5, 8)}


def published(schedule: Schedule) -> Schedule:
    return schedule


def without_waiting(schedule: Schedule) -> Schedule:
    """Weights go on as soon as they come; no op waits for D, which takes what was kept for it."""

    def change(transfer: Transfer) -> Transfer:
        if transfer.kind is TravelKind.WEIGHT:
            return replace(transfer, after=0, room=0)
        return replace(transfer, before=len(schedule.order[transfer.target]))

    return timed(replace(schedule, transfers=tuple(map(change, schedule.transfers))))


def split(schedule: Schedule) -> Schedule:
    """B and W apart, W's two ops late where possible."""
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


VARIANTS: dict[str, Callable[[Schedule], Schedule]] = {
    "published": published,
    "without-waiting": without_waiting,
    "split": split,
}


@dataclass(frozen=True)
class Case:
    """One schedule on one model; ``steps`` > 0 compares the parameters after so many steps."""

    variant: str
    ranks: int
    microbatches: int
    dtype: torch.dtype
    steps: int = 0
    memory: bool = True
    family: str = "weipipe-interleave"
    uneven: bool = False
    stages: int = 0  # 0: as many as ranks

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        steps = f"-{self.steps}steps" if self.steps else ""
        counted = "" if self.memory else "-uncounted"
        name = f"{self.family}-{self.variant}"
        uneven = "-uneven" if self.uneven else ""
        stages = f"-{self.stages}stages" if self.stages else ""
        return f"{name}{uneven}{stages}-{self.ranks}x{self.microbatches}-{dtype}{steps}{counted}"


@dataclass(frozen=True)
class Outcome:
    """On one rank: the worst difference of a parameter, relative to its largest value."""

    differences: dict[str, float]
    losses: list[float]
    expected_losses: list[float]
    peak_memory: int


def cases(ranks: int) -> list[Case]:
    return variant_cases(ranks) + family_cases(ranks)


def family_cases(ranks: int) -> list[Case]:
    """Every family on uneven layers, with M = P, 2P and 3P + 1."""
    found = []
    for name in (*TRAVELLING, "fsdp:0"):
        if fits(name, ranks):
            case = Case("published", ranks, 2 * ranks, torch.float64, 3, False, name, True)
            plain = replace(case, steps=0, memory=True)
            for count in (ranks, 2 * ranks, 3 * ranks + 1):
                found += [replace(plain, microbatches=count, dtype=dtype) for dtype in BOUNDS]
            found.append(case)
    more = Case("published", ranks, ranks + 1, torch.float64, 3, False, "fsdp:3", True)
    return [*found, replace(more, stages=2 * ranks + 1)]


def variant_cases(ranks: int) -> list[Case]:
    """Interleave's order and others of the same ops, on one block a stage."""
    found = [
        Case("published", ranks, count, dtype) for count in MICROBATCHES[ranks] for dtype in BOUNDS
    ]
    count = MICROBATCHES[ranks][2]
    for variant in VARIANTS:
        found += [Case(variant, ranks, count, torch.float64, steps=3, memory=False)]
        found += [Case(variant, ranks, count + ranks, torch.float32)]
    return found


def schedule(case: Case) -> Schedule:
    stages = (StageProfile(2.0, 2.0, 1.5),) * (case.stages or case.ranks)
    profile = Profile(stages, case.ranks, t_comm=0.1)
    plan = build_family(case.family, profile, case.microbatches)
    return VARIANTS[case.variant](plan)


def run_cases(chosen: list[Case]) -> list[Outcome]:
    """On every rank of one launch."""
    torch.set_num_threads(1)
    return [run_case(case) for case in chosen]


def run_case(case: Case) -> Outcome:
    source, stages = TinyTransformer(case.dtype, uneven=case.uneven), case.stages or case.ranks
    tied = [sorted({s for s, _ in group}) for group in source.tied(stages)]
    program = compile_schedule(schedule(case), tied=tied)
    trains, steps = case.steps > 0, max(1, case.steps)
    pipeline = Pipeline.from_source(program, source, train=trains, memory=case.memory)
    losses: list[Tensor] = []
    for step in range(steps):
        inputs, targets = source.batch(step, case.microbatches)
        pipeline.step(inputs, target=targets, losses=losses)
    history, expected = reference(source, stages, case.microbatches, steps=steps, train=trains)
    found = {
        f"{s}.{name}": parameter.detach() if trains else parameter.grad
        for s, module in pipeline.modules.items()
        for name, parameter in module.named_parameters()
    }
    return Outcome(
        {name: difference(tensor, expected[name]) for name, tensor in found.items()},
        [loss.item() for loss in losses],
        history[-1][pipeline.rank :: case.ranks],
        pipeline.peak_memory,
    )
