"""An exported CSV loads in torch.distributed.pipelining and trains to one process's gradients."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, distributed, multiprocessing, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from pipeloom.compiler.exporters.torch_csv import write
from pipeloom.ir import Profile, StageProfile
from pipeloom.solver import build_family

RANKS, WIDTH, ROWS = 2, 8, 4
FAMILIES = {"1f1b": 3, "zb-h1": 3, "interleaved-1f1b:2": 4}  # and their microbatches


def make_stage(index: int) -> nn.Module:
    torch.manual_seed(index)
    inner = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
    return nn.Sequential(nn.LayerNorm(WIDTH), inner).double()


def batch(microbatches: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(99)
    x, target = torch.randn(2, microbatches * ROWS, WIDTH, dtype=torch.float64)
    return x, target


def gradients(stages: dict[int, nn.Module]) -> dict[str, Tensor]:
    return {
        f"{index}.{name}": parameter.grad
        for index, stage in stages.items()
        for name, parameter in stage.named_parameters()
        if parameter.grad is not None
    }


def train_with_torch(rank: int, folder: str) -> None:
    """One process of torch's own runtime: a step with each CSV in ``folder``."""
    rendezvous = f"file://{folder}/rendezvous"
    distributed.init_process_group("gloo", rendezvous, rank=rank, world_size=RANKS)
    for path in sorted(Path(folder).glob("*.csv")):
        rows = [line.split(",") for line in path.read_text().splitlines()]
        names = [[int(cell.split("F")[0]) for cell in row if "F" in cell] for row in rows]
        stages = {index: make_stage(index) for index in sorted(set(names[rank]))}
        count = 1 + max(map(max, names))
        x, target = batch(microbatches=len(names[0]) // len(set(names[0])))
        pipeline = _PipelineScheduleRuntime(
            [PipelineStage(m, i, count, torch.device("cpu")) for i, m in stages.items()],
            len(x) // ROWS,
            loss_fn=nn.functional.mse_loss,
        )
        pipeline._load_csv(str(path), format="compute_only")
        pipeline.step(*([x] if rank == 0 else []), target=target, return_outputs=False)
        torch.save(gradients(stages), f"{folder}/{path.stem}.{rank}.pt")
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torch-csv")
    profile = Profile((StageProfile(1.0, 1.0, 1.0),) * RANKS, RANKS, t_comm=0.1)
    for name, microbatches in FAMILIES.items():
        csv = write(build_family(name, profile, microbatches))
        (folder / f"{name.replace(':', '-')}.csv").write_text(csv)
    multiprocessing.start_processes(
        train_with_torch, (str(folder),), nprocs=RANKS, start_method="spawn"
    )
    return folder


@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_are_those_of_one_process(trained: Path, name: str) -> None:
    found: dict[str, Tensor] = {}
    for rank in range(RANKS):
        found |= torch.load(trained / f"{name.replace(':', '-')}.{rank}.pt")
    stages = {index: make_stage(index) for index in range(4 if "interleaved" in name else 2)}
    x, target = batch(FAMILIES[name])
    nn.functional.mse_loss(nn.Sequential(*stages.values())(x), target).backward()
    expected = gradients(stages)
    assert found.keys() == expected.keys()
    for key, gradient in expected.items():
        torch.testing.assert_close(found[key], gradient, rtol=1e-12, atol=1e-15)
