"""Steps of which only the last one updates: one process's parameters after as many backwards."""

from __future__ import annotations

import pytest

from pipeloom.compiler import compile_schedule
from pipeloom.ir.errors import InputError
from pipeloom.ir.model.program import Program
from pipeloom.runtime.launch.processes import launch
from pipeloom.runtime.pipeline.pipeline import Pipeline
from tests.distributed.cases.gradients import V, schedule
from tests.distributed.cases.steps import added_up, in_replicas
from tests.support.hub import on_threads
from tests.support.models import TinyTransformer, Untied

MICROBATCHES = 4
# tied over ranks; on one rank; each stage on two ranks; weights sent round, from owners
FAMILIES = {
    "1f1b": 2, "zb-h2": 3, V: 2, "chimera": 2, "dualpipe": 4, "weipipe-interleave": 2, "fsdp": 2,
}  # fmt: skip


def compiled(family: str, ranks: int, *, ahead: bool = False, parallel: bool = False) -> Program:
    plan = schedule(family, ranks, MICROBATCHES)
    tied = [(0, plan.problem.stages - 1)]
    return compile_schedule(plan, tied=tied, post_validation=ahead, data_parallel=parallel)


def trained(program: Program) -> tuple[float, int, float | None]:
    return added_up(program, TinyTransformer())


@pytest.mark.parametrize(("family", "ranks"), FAMILIES.items())
def test_parameters_are_one_processs(family: str, ranks: int) -> None:
    check(on_threads(trained, ranks, (compiled(family, ranks),), timeout=120).values())


def test_steps_that_are_taken_back_are_one_processs() -> None:
    """Each update is clipped, which no rank but the last knows when it steps."""
    program = compiled("zb-h2", 3, ahead=True)
    check(on_threads(trained, 3, (program,), timeout=120).values())


def check(outcomes: object) -> None:
    rows = list(outcomes)  # type: ignore[call-overload]
    assert rows
    for apart, compared, norm in rows:
        assert compared > 0
        assert norm is not None
        assert apart <= 1e-12


def test_replicas_and_shards_are_one_process() -> None:
    programs = (
        compiled("1f1b", 2, parallel=True),
        compiled("zb-h1", 2, parallel=True, ahead=True),
        compile_schedule(schedule("1f1b", 2, MICROBATCHES), data_parallel=True),
    )
    found = launch(in_replicas, 4, programs, timeout=240, message_timeout=60)
    check(row for rows in found.values() for row in rows)


def test_a_program_that_steps_after_each_microbatch_cannot_leave_it() -> None:
    program = compile_schedule(schedule("pipedream", 1, MICROBATCHES))
    source = Untied()
    pipeline = Pipeline.from_source(program, source)
    inputs, targets = source.batch(0, MICROBATCHES)
    with pytest.raises(InputError, match=r"^update: expected True with a program that steps after"):
        pipeline.step(inputs, target=targets, update=False)
