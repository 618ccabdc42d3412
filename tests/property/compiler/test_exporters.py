"""Whatever an exporter writes and can read comes back as the same order."""

from __future__ import annotations

import pytest
from hypothesis import assume, given

from pipeloom.compiler.exporters import EXPORTERS
from pipeloom.ir.model.ops import format_order
from pipeloom.ir.model.schedule import Schedule
from tests.support.random_schedules import schedules


@pytest.mark.parametrize("name", [name for name, e in EXPORTERS.items() if e.read is not None])
@given(schedule=schedules())
def test_what_is_written_reads_back(name: str, schedule: Schedule) -> None:
    problem = schedule.problem
    assume(len(set(problem.placement.owners)) == problem.ranks)
    exporter = EXPORTERS[name]
    assert exporter.read is not None
    back = exporter.read(exporter.write(schedule), problem.profile, "text")
    assert back.problem.placement.owners == problem.placement.owners
    assert back.problem.microbatches == problem.microbatches
    for rank in range(problem.ranks):
        assert format_order(back.ops(rank)) == format_order(schedule.ops(rank))
