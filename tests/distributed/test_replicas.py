"""``run`` on replicas of a pipeline: together they train as one process with all of their
microbatches."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from pipeloom.compiler import compile_schedule
from pipeloom.ir import (
    InputError,
    PipeloomError,
    Program,
    dump_program,
    load_program,
    load_schedule,
    write_json,
)
from pipeloom.runtime import LaunchError, Pipeline, RunSettings, launch_ranks, run_program
from tests.support.launched import in_one_launch
from tests.support.models import TinyTransformer, full, mean_losses
from tests.support.one_rank import Of
from tests.support.processes import torchrun
from tests.support.schedules import schedule

REPLICAS, RANKS, MICROBATCHES, STEPS = 2, 2, 3, 3
SOURCE = "tests.support.models:TinyTransformer"


def replicated(family: str) -> Program:
    plan = schedule(family, RANKS, MICROBATCHES)
    return compile_schedule(plan, tied=[(0, plan.problem.stages - 1)], data_parallel=True)


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = str(tmp_path / "program.json")
    write_json(dump_program(replicated("zb-v")), path)
    return path


@pytest.fixture
def expected() -> list[float]:
    """The losses of one process with the microbatches of both replicas."""
    return mean_losses(TinyTransformer(), 2 * RANKS, REPLICAS * MICROBATCHES, STEPS)


def test_losses_are_one_processs_and_the_trace_is_the_first_replicas(
    program: str, expected: list[float], tmp_path: Path
) -> None:
    trace = str(tmp_path / "measured.json")
    settings = RunSettings(steps=STEPS, replicas=REPLICAS)
    result = run_program(program, SOURCE, settings, trace_path=trace)
    assert result is not None
    assert result.replicas == REPLICAS
    assert result.losses == pytest.approx(expected, rel=1e-12)
    assert len(result.seconds) == STEPS
    assert len(result.peak_memory) == RANKS
    measured, planned = load_schedule(trace), load_program(program).schedule
    assert measured.known_timing.makespan <= 1e3 * max(result.seconds)
    for rank in range(RANKS):
        assert measured.ops(rank) == planned.ops(rank)


@pytest.mark.slow
def test_torchruns_processes_are_as_many_replicas_as_they_make_up(
    program: str, expected: list[float]
) -> None:
    words = ("pipeloom", "run", program, "--model", SOURCE, "--steps", STEPS, "--json")
    ended = torchrun(REPLICAS * RANKS, *words)
    answer = json.loads(ended.stdout)  # one process speaks
    assert [ended.stderr.count(f"step {step}: loss") for step in range(STEPS)] == [1] * STEPS
    assert answer["replicas"] == REPLICAS
    assert answer["losses"] == pytest.approx(expected, rel=1e-12)


def scales(*dtypes: torch.dtype) -> nn.Sequential:
    """Products with parameters of these dtypes."""
    ones = (nn.Parameter(torch.ones(4, dtype=dtype)) for dtype in dtypes)
    return nn.Sequential(*(Of(lambda m, x: x * m.factor, factor=factor) for factor in ones))


MIXED = torch.bfloat16, torch.float64


def replica(
    ranks: int, microbatches: int = MICROBATCHES, **options: Any
) -> tuple[Pipeline, DeviceMesh, list[nn.Sequential]]:
    """One of two, with such a stage on each rank, its place, and all stages."""
    mesh = init_device_mesh("cpu", (2, 1, ranks), mesh_dim_names=("dp", "one", "pp"))
    stages = [scales(*MIXED) for _ in range(ranks)]
    over = options.pop("sharded", ())
    if over:  # each parameter by itself
        for part in (*stages[0], stages[0]):
            fully_shard(part, mesh=mesh[over])
    groups = {"group": mesh["pp"].get_group(), "data_group": mesh["dp"].get_group()}
    program = compile_schedule(schedule("1f1b", ranks, microbatches), data_parallel=True)
    loss = nn.functional.mse_loss
    return Pipeline(program, stages, loss=loss, timeout=60, **groups, **options), mesh, stages


def averaged(*sharded: str) -> float:
    """Over these dimensions of the mesh, of which the last has shards and another one copies. How
    far the average of the parameter of high precision is from what one process has."""
    pipeline, mesh, (stage,) = replica(1, sharded=sharded)
    whole, batches = scales(*MIXED), torch.randn(2, 2, 6, 4, dtype=torch.float64)
    dist.broadcast(batches, 0)
    x, y = batches[mesh.get_local_rank("dp")]
    pipeline.step(x, target=y)
    nn.functional.mse_loss(whole(batches[:, 0]), batches[:, 1]).backward()
    pipeline.close()
    found, wanted = (each.get_parameter("1.factor").grad for each in (stage, whole))
    assert found is not None
    assert wanted is not None
    return float((full(found) - wanted).abs().max())


def stepped_unlike() -> str:
    """What is said where replicas have other numbers of microbatches."""
    count = 3 - dist.get_rank()
    pipeline, *_ = replica(1, count)
    x = torch.ones(6, 4, dtype=torch.float64)
    with pytest.raises(InputError) as error:
        pipeline.step(x, target=x)
    return str(error.value)


@cache
def of_two() -> list[list[Any]]:
    ways: list[tuple[str, ...]] = [("dp",), ("dp", "one"), ()]
    return in_one_launch(2, [*((averaged, way) for way in ways), (stepped_unlike, ())])


def test_sums_of_parts_wrapped_apart_are_of_the_highest_precision() -> None:
    assert max(max(rows) for rows in of_two()[:3]) < 1e-14


def test_replicas_with_unlike_numbers_of_microbatches_raise_alike() -> None:
    for line in of_two()[3]:
        assert re.match(r"microbatches: .* on all replicas, got \[3, 2\]$", line)


def begun_unlike(tell: Callable[[str], object]) -> None:
    """Tells what the first step says where each replica freezes another parameter of the last
    stage; then the third process fails."""
    pipeline, mesh, stages = replica(2)
    frozen = f"{mesh.get_local_rank('dp')}.factor"
    stages[-1].get_parameter(frozen).requires_grad_(False)
    x = torch.ones(6, 4, dtype=torch.float64)
    with pytest.raises((PipeloomError, ConnectionError)) as error:
        pipeline.step(x, target=x)
    tell(f"{type(error.value).__name__}: {error.value}")
    dist.barrier()
    if dist.get_rank() == 2:
        raise ValueError("this one's fault")
    dist.barrier()


def test_replicas_that_freeze_other_parameters_are_refused_alike_and_errors_name_the_replica() -> (
    None
):
    """On all ranks, though only the last one has the stage."""
    said: list[str] = []
    with pytest.raises(LaunchError, match=r"^replica 1, rank 0: ValueError: this one's") as caught:
        launch_ranks(begun_unlike, 2, replicas=2, timeout=60, listener=said.append)
    assert caught.value.rank == 2
    line = (
        r"InputError: (.*rank 1: )?step: expected requires_grad alike in all replicas of 0.factor "
    )
    assert [bool(re.match(line, told)) for told in said] == [True] * 4, said
