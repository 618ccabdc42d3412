"""Replicas of a pipeline average their gradients: together they train as one process does."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from pipeloom.compiler import compile_schedule
from pipeloom.ir.errors import InputError
from pipeloom.ir.formats import dump_program
from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.model.program import Average, Step
from pipeloom.ir.verify.program import verify_program
from pipeloom.runtime.launch.processes import launch
from pipeloom.runtime.pipeline.pipeline import Pipeline
from pipeloom.solver.families import ASYNCHRONOUS
from tests.support.families import families_of
from tests.support.models import TinyTransformer, named, reference, worst
from tests.support.schedules import schedule

REPLICAS, RANKS, MICROBATCHES, STEPS = 2, 2, 3, 3
FAMILIES = ("1f1b", "zb-h1", "zb-v", "chimera", "weipipe-interleave")


def test_averages_begin_before_the_other_stages_end() -> None:
    plan = schedule("zb-v", RANKS, MICROBATCHES)
    program = compile_schedule(plan, data_parallel=True)
    for row in program.instructions:
        kinds = [type(i) for i in row]
        averaged = [i.stage for i in row if isinstance(i, Average)]
        assert sorted(averaged) == sorted(i.stage for i in row if isinstance(i, Step))
        texts = [str(i) for i in row]
        last = {
            s: max(i for i, t in enumerate(texts) if t.startswith((f"{s}W", f"{s}BW")))
            for s in averaged
        }
        assert all(texts.index(f"average {s}") > at for s, at in last.items())
        assert kinds.index(Average) < max(last.values())


@pytest.mark.parametrize("family", [f for f in families_of(3) if f not in ASYNCHRONOUS])
def test_each_synchronous_family_can_be_replicated(family: str) -> None:
    program = compile_schedule(schedule(family, 3, 4), tied=[(0, 1)], data_parallel=True)
    assert verify_program(dump_program(program)) == []


@pytest.fixture(scope="module")
def outcomes() -> dict[int, list[tuple[float, float]]]:
    return launch(trained, REPLICAS * RANKS, timeout=200, message_timeout=60)


@pytest.mark.parametrize("family", FAMILIES)
def test_replicas_train_as_one_process(
    outcomes: dict[int, list[tuple[float, float]]], family: str
) -> None:
    for rows in outcomes.values():
        parameters, norm = rows[FAMILIES.index(family)]
        assert parameters <= 1e-12
        assert norm <= 1e-12


def trained() -> list[tuple[float, float]]:
    """On each process: how far the parameters and the last norm are from one process's."""
    mesh = init_device_mesh("cpu", (REPLICAS, RANKS), mesh_dim_names=("dp", "pp"))
    return [_trained(family, mesh["pp"].get_group(), mesh["dp"].get_group()) for family in FAMILIES]


def _check_trace(pipeline: Pipeline) -> None:
    """Each rank's averages are measured, from after the last op that adds to the gradient on."""
    measured = pipeline.gather_trace()
    for rank, row in enumerate(measured.known_timing.averages):
        planned = [i.stage for i in pipeline.program.instructions[rank] if isinstance(i, Average)]
        assert sorted(one.stage for one in row) == sorted(planned)
        ends = zip(measured.ops(rank), measured.known_timing.end[rank].tolist(), strict=True)
        last = {op.stage: end for op, end in ends if op.kind in (OpKind.W, OpKind.BW)}
        assert all(one.end >= one.start >= last.get(one.stage, 0.0) for one in row)


def _trained(
    family: str, group: dist.ProcessGroup, data_group: dist.ProcessGroup
) -> tuple[float, float]:
    source = TinyTransformer()
    plan = schedule(family, RANKS, MICROBATCHES)
    stages = plan.problem.stages
    program = compile_schedule(
        plan, tied=[(0, stages - 1)], data_parallel=True, post_validation=family == "zb-h1"
    )
    with pytest.raises(InputError, match="data_group: expected a process group"):
        Pipeline.from_source(program, source, group=group)
    pipeline = Pipeline.from_source(
        program, source, group=group, data_group=data_group, clip_grad_norm=1e9
    )
    mine = slice(data_group.rank() * MICROBATCHES, (data_group.rank() + 1) * MICROBATCHES)
    for step in range(STEPS):
        inputs, targets = source.batch(step, REPLICAS * MICROBATCHES)
        pipeline.step(inputs[mine], target=targets[mine])
    pipeline.finish()
    _check_trace(pipeline)
    _, expected = reference(source, stages, REPLICAS * MICROBATCHES, steps=STEPS, train=True)
    parameters = worst(named(pipeline.modules), expected)
    norms = pipeline.gather(pipeline.grad_norm)
    pipeline.close()
    assert norms[0] is not None
    return parameters, abs(norms[0] - norms[-1]) / norms[0]
