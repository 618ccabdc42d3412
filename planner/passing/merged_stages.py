"""Consecutive stages of a rank planned as one stage.

Where no messages are waited for it takes the same times, and it never holds more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TypeAlias

from pipeloom.ir.model.layered_profile import joined
from pipeloom.ir.model.ops import Op, OpKind
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Problem

Plan: TypeAlias = Callable[[Problem], Sequence[Iterable[Op]]]
"""The order of each stage of a problem with one stage a rank."""


def planned_as_one(problem: Problem, plan: Plan) -> list[list[Op]]:
    """The order of each rank, where each runs consecutive stages, by a ``plan`` of one stage a
    rank."""
    owners = problem.placement.owners
    groups = [tuple(stages) for _, stages in groupby(range(len(owners)), key=owners.__getitem__)]
    ranks = [owners[group[0]] for group in groups]
    stages = tuple(joined([problem.profile.stages[s] for s in group]) for group in groups)
    merged = replace(
        problem,
        profile=replace(problem.profile, stages=stages),
        placement=Placement.of_stages(ranks, ranks=problem.ranks),
    )
    rows: list[list[Op]] = [[] for _ in range(problem.ranks)]
    for rank, row, group in zip(ranks, plan(merged), groups, strict=True):
        rows[rank] = expanded(row, group)
    return rows


def expanded(row: Iterable[Op], group: tuple[int, ...]) -> list[Op]:
    """The order of one merged stage as one of its stages: F's down, B's up, then their W's."""
    return [
        Op(op.kind, stage, op.microbatch)
        for op in row
        for stage in (group if op.kind is OpKind.F else reversed(group))
    ]
