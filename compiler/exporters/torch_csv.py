"""The CSV of torch.distributed.pipelining. It contains no communication; torch adds that.

::

    0F0,0F1,,,0I0,0W0,...     one row per rank, no header
    ,1F0,1I0,1F1,1B1,...      {stage}{F|I|W|B}{microbatch}, an empty cell where the rank idles

pipeloom's B is I in the CSV, and BW is B. torch ignores empty cells. They are written for human
readers: a column is one unit of time if T_F = T_B = T_W = 1 (a BW takes two) and there are no
delays. There must be no blank line at the end, as torch would read it as another rank.
"""

from __future__ import annotations

import re
from dataclasses import replace

from pipeloom.ir.cost.remat import pulled
from pipeloom.ir.cost.simulator import simulate, timed
from pipeloom.ir.errors import InputError
from pipeloom.ir.model.ops import Op, OpKind
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule, Updates
from pipeloom.ir.units import counted

from ..passes.compute import check_complete
from .stage_layers import check_passing

_KINDS = {"F": OpKind.F, "I": OpKind.B, "W": OpKind.W, "B": OpKind.BW}
_LETTERS = {kind: letter for letter, kind in _KINDS.items()}
_CELL = re.compile(r"(\d{1,9})([FIWB])(\d{1,9})")
_EXPECTED = "expected e.g. 2F0, 2I0, 2W0 or 2B0, or an empty cell"


def write(schedule: Schedule) -> str:
    """The text of the CSV for ``schedule``. In a pair, F comes before BW.

    Raises InputError if stages do not stay on one rank, if a stage has several optimizer steps per
    iteration, if activations are recomputed or offloaded, or if a rank has no ops.
    """
    if schedule.updates is not Updates.ITERATION:
        raise InputError(
            f"schedule: updates: torch-csv steps once an iteration; got {schedule.updates.value}"
        )
    check_passing(schedule, "torch-csv")
    if pulled(schedule.order):
        raise InputError("schedule: order: torch-csv has no letter for R, O and L; got some")
    for rank, ops in enumerate(schedule.order):
        if not len(ops):
            raise InputError(
                f"schedule: order[{rank}]: torch-csv needs ops on every rank; got none"
            )
    starts = simulate(_in_unit_times(schedule)).start
    rows = [
        _cells(schedule.ops(rank), start.astype(int).tolist()) for rank, start in enumerate(starts)
    ]
    return "".join(",".join(row) + "\n" for row in rows)


def _in_unit_times(schedule: Schedule) -> Schedule:
    stages = (StageProfile(1.0, 1.0, 1.0),) * schedule.problem.stages
    profile = replace(schedule.problem.profile, stages=stages, t_comm=0.0)
    return replace(schedule, problem=replace(schedule.problem, profile=profile), pairs=())


def _cells(ops: list[Op], columns: list[int]) -> list[str]:
    cells = [""] * (max(columns, default=-1) + 1)
    for op, column in zip(ops, columns, strict=True):
        cells[column] = f"{op.stage}{_LETTERS[op.kind]}{op.microbatch}"
    return cells


def read(text: str, profile: Profile, where: str = "CSV") -> Schedule:
    """The schedule in ``text``, with times from ``profile``; ``where`` names the text in messages.

    Raises InputError, with one line per wrong cell (rows and columns count from 1), or if the
    number of ranks differs from the profile's or a stage is not in the profile. Raises
    InvalidScheduleError if ops are missing or repeated, or can never run.
    """
    rows = [line.split(",") for line in text.rstrip().splitlines()]
    if len(rows) != profile.ranks:
        raise InputError(
            f"{where}: expected {counted(profile.ranks, 'row')}, one for each of the profile's "
            f"ranks, got {len(rows)}"
        )
    errors: list[str] = []
    cells = sum(map(len, rows))
    order = [
        [
            op
            for column, cell in enumerate(row, start=1)
            if (op := _op(cell, cells, f"{where}: row {number}, column {column}", errors))
        ]
        for number, row in enumerate(rows, start=1)
    ]
    if errors:
        raise InputError(*errors)
    beyond = [op for ops in order for op in ops if op.stage >= profile.num_stages]
    if beyond:
        raise InputError(
            f"{where}: the profile has stages 0..{profile.num_stages - 1}, got a cell of stage "
            f"{beyond[0].stage}"
        )
    schedule = Schedule.of(_problem(profile, order), order, "torch-csv")
    check_complete(schedule)
    return timed(schedule)


def stages_in(text: str) -> int:
    """The number of stages in the text of a CSV: the highest stage number in its cells plus 1."""
    found = re.findall(r"\b([0-9]{1,6})[FIWB]", text)
    return 1 + max(map(int, found), default=0)


def _op(cell: str, cells: int, where: str, errors: list[str]) -> Op | None:
    """The op in a cell, or None for an empty cell.

    For a wrong cell, it adds a line to ``errors`` and returns None. ``cells``: the number of cells
    in the file; the number of a microbatch must be below it.
    """
    cell = cell.strip()
    if not cell:
        return None
    match = _CELL.fullmatch(cell)
    if match is None:
        errors.append(f"{where}: {_EXPECTED}, got {cell!r}")
        return None
    op = Op(_KINDS[match[2]], int(match[1]), int(match[3]))
    if op.microbatch >= cells:  # each microbatch has at least one cell
        errors.append(f"{where}: {cell!r} has a microbatch beyond the {cells} cells of the file")
        return None
    return op


def _problem(profile: Profile, order: list[list[Op]]) -> Problem:
    owners = dict.fromkeys(range(profile.num_stages), 0)
    for rank, ops in enumerate(order):
        owners.update((op.stage, rank) for op in ops)
    microbatches = 1 + max((op.microbatch for ops in order for op in ops), default=0)
    placement = Placement.of_stages(tuple(owners.values()))
    return Problem(profile, microbatches, placement, profile.limit_from(None))
