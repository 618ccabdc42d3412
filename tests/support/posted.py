"""A schedule as ranks run it that do one thing at a time."""

from __future__ import annotations

from dataclasses import replace

from pipeloom.ir import Schedule
from pipeloom.ir.cost.steady_state.send_points import between_ops


def posted_between_ops(schedule: Schedule) -> Schedule:
    """``schedule`` untimed, with the same ops, its transfers as :func:`between_ops` has them."""
    routes = between_ops(schedule)
    columns = (column.tolist() for column in (routes.after, routes.before, routes.room))
    changed = (
        replace(transfer, after=after, before=before, room=room)
        for transfer, after, before, room in zip(schedule.transfers, *columns, strict=True)
    )
    return replace(schedule, transfers=tuple(changed), timing=None)
