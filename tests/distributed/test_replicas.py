"""``run`` on replicas of a pipeline: together they train as one process with all of their
microbatches."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from pipeloom.compiler import compile_schedule
from pipeloom.ir import (
    InputError,
    OpKind,
    PipeloomError,
    Program,
    dump_program,
    load_program,
    load_schedule,
    write_json,
)
from pipeloom.runtime import LaunchError, Pipeline, RunSettings, launch_ranks, run_program
from pipeloom.runtime.train.replicas import count_replicas
from tests.support.launched import in_one_launch
from tests.support.models import TinyTransformer, full, mean_losses
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
        stages = {op.stage for op in planned.ops(rank)}
        row = measured.known_timing.averages[rank]
        assert sorted(one.stage for one in row) == sorted(stages)
        ends = zip(measured.ops(rank), measured.known_timing.end[rank].tolist(), strict=True)
        last = {op.stage: end for op, end in ends if op.kind in (OpKind.W, OpKind.BW)}
        assert all(one.end >= one.start >= last[one.stage] - 1e-6 for one in row)


@pytest.mark.slow
def test_torchruns_processes_are_as_many_replicas_as_they_make_up(
    program: str, expected: list[float]
) -> None:
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *(f"--nproc-per-node={REPLICAS * RANKS}", "-m", "pipeloom", "run", program),
        *("--model", SOURCE, "--steps", str(STEPS), "--json"),
    ]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        command, env=environment, timeout=300, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    answer = json.loads(ended.stdout)  # one process speaks
    assert [ended.stderr.count(f"step {step}: loss") for step in range(STEPS)] == [1] * STEPS
    assert answer["replicas"] == REPLICAS
    assert answer["losses"] == pytest.approx(expected, rel=1e-12)


def test_how_many_replicas_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    program = replicated("zb-h1")
    alone = compile_schedule(program.schedule)
    with pytest.raises(
        InputError, match=r"schedule: profile: data_parallel: missing; .* --replica"
    ):
        count_replicas(program, RunSettings())
    assert count_replicas(program, RunSettings(replicas=3)) == 3
    assert count_replicas(alone, RunSettings()) == count_replicas(alone, RunSettings(replicas=1))
    with pytest.raises(
        InputError, match=r"instructions: expected averages for 2 replicas, .* none"
    ):
        count_replicas(alone, RunSettings(replicas=2))
    with pytest.raises(InputError, match="replicas: expected at least 1, got 0"):
        RunSettings(replicas=0)
    torchrun = {"RANK": "0", "WORLD_SIZE": "6", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    for name, value in torchrun.items():
        monkeypatch.setenv(name, value)
    assert count_replicas(program, RunSettings()) == 3
    with pytest.raises(InputError, match="expected 4, the program's ranks times 2 replicas, got 6"):
        run_program(program, TinyTransformer(), RunSettings(replicas=2))
    monkeypatch.setenv("WORLD_SIZE", "5")
    with pytest.raises(InputError, match=r"WORLD_SIZE: expected a multiple of 2, .* got 5"):
        count_replicas(program, RunSettings())


def throw_on(process: int) -> None:
    if dist.get_rank() == process:
        raise ValueError("this one's fault")
    dist.barrier()


def test_errors_name_the_replica() -> None:
    with pytest.raises(LaunchError, match=r"^replica 1, rank 0: ValueError: this one's") as caught:
        launch_ranks(throw_on, 2, (2,), replicas=2, timeout=60)
    assert caught.value.rank == 2


class Mixed(nn.Module):
    """A parameter of low precision, then one of high."""

    def __init__(self) -> None:
        super().__init__()
        self.low = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
        self.high = nn.Parameter(torch.ones(4, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.low * self.high


def of_replica(program: Program, *stages: nn.Module) -> tuple[Pipeline, int]:
    """The pipeline of these stages, one a rank, and the number of its replica."""
    mesh = init_device_mesh("cpu", (2, len(stages)), mesh_dim_names=("dp", "pp"))
    groups = {"group": mesh["pp"].get_group(), "data_group": mesh["dp"].get_group()}
    loss = nn.functional.mse_loss
    return Pipeline(program, [*stages], loss=loss, timeout=60, **groups), mesh.get_local_rank("dp")


def batch(replica: int) -> tuple[list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(replica)
    x, y = torch.randn(2, MICROBATCHES, 3, 4, generator=generator, dtype=torch.float64)
    return list(x), list(y)


def averaged(program: Program, stage: nn.Module, whole: nn.Module, name: str) -> float:
    """How far the average of a parameter of this name is from what one process has."""
    pipeline, replica = of_replica(program, stage)
    inputs, targets = batch(replica)
    pipeline.step(inputs, target=targets)
    for x, y in (pair for r in range(2) for pair in zip(*batch(r), strict=True)):
        (nn.functional.mse_loss(whole(x), y) / (2 * MICROBATCHES)).backward()
    pipeline.close()
    found, expected = (each.get_parameter(name).grad for each in (stage, whole))
    assert found is not None
    assert expected is not None
    return float((full(found) - expected).abs().max())


def stepped_unlike(programs: dict[int, Program]) -> list[str]:
    """What is said where replicas are asked for other numbers of microbatches, or one for none;
    then they go on."""
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "pp"))
    groups = {"group": mesh["pp"].get_group(), "data_group": mesh["dp"].get_group()}
    loss, first = nn.functional.mse_loss, mesh.get_local_rank("dp") == 0
    pipeline = Pipeline(programs[4], [Mixed()], loss=loss, programs=programs.__getitem__, **groups)
    said = []
    for count in (4 if first else 2, 4 if first else 0, 2, 4):
        x = torch.ones(8, 4, dtype=torch.float64)
        try:
            pipeline.step(x, target=x, microbatches=count)
        except InputError as error:
            said.append(str(error))
    return said


def test_replicas_with_unlike_numbers_of_microbatches_raise_alike() -> None:
    plans = (schedule("1f1b", 1, count) for count in (2, 4))
    programs = {plan.problem.microbatches: compile_schedule(plan, data_parallel=True)
                for plan in plans}  # fmt: skip
    for replica, said in launch_ranks(
        stepped_unlike, 1, (programs,), replicas=2, timeout=100
    ).items():
        unlike, none = said
        assert re.match(r"microbatches: .* on all replicas, got \[4, 2\]$", unlike)
        where = "" if replica else "replica 1, "
        assert none.startswith(f"{where}rank 0: microbatches: expected a number")


class Scale(nn.Module):
    """Its input times a parameter."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(4, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def last_averaged(program: Program, dtypes: Sequence[torch.dtype], sharded: bool) -> float:
    """How far the average of the last of these factors, sharded each for itself or not, is from
    what one process has."""
    stage, whole = (nn.Sequential(*map(Scale, dtypes)) for _ in range(2))
    if sharded:
        mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "pp"))["dp"]
        for part in (*stage, stage):
            fully_shard(part, mesh=mesh)
    return averaged(program, stage, whole, f"{len(dtypes) - 1}.factor")


def test_sums_of_parts_wrapped_apart_are_of_the_highest_precision() -> None:
    program = compile_schedule(schedule("1f1b", 1, MICROBATCHES), data_parallel=True)
    dtypes = torch.bfloat16, torch.float64
    calls = [(last_averaged, (program, dtypes, sharded)) for sharded in (True, False)]
    assert max(max(rows) for rows in in_one_launch(2, calls)) < 1e-14


def begun_unlike(program: Program, frozen: Sequence[str], ranks: int) -> str:
    """What the first step says where each replica freezes its own of these parameters of the last
    stage."""
    stages = [Mixed() for _ in range(ranks)]
    pipeline, replica = of_replica(program, *stages)
    inputs, targets = batch(replica)
    stages[-1].get_parameter(frozen[replica]).requires_grad_(False)
    try:
        pipeline.step(inputs, target=targets)
    except (PipeloomError, ConnectionError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize("ranks", [1, 2])
def test_replicas_that_freeze_other_parameters_before_the_first_step_are_refused_alike(
    ranks: int,
) -> None:
    """On all ranks, though only the last one has the stage."""
    program = compile_schedule(schedule("1f1b", ranks, MICROBATCHES), data_parallel=True)
    arguments = program, ["low", "high"], ranks
    said = launch_ranks(begun_unlike, ranks, arguments, replicas=2, timeout=100).values()
    assert len(said) == 2 * ranks
    line = f"InputError: rank {ranks - 1}: step: expected requires_grad alike in all replicas of "
    for told in said:
        assert told.startswith(f"{line}low of stage {ranks - 1}")
