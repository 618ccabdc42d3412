"""Stages in wrappers that reduce gradients by themselves are refused: ``data_group`` does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.distributed._composable import replicate
from torch.distributed._composable.replicate_with_fsdp import replicate as replicate_with_fsdp
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from pipeloom.compiler import compile_schedule
from pipeloom.ir import InputError
from pipeloom.runtime import Pipeline, launch_ranks
from pipeloom.runtime.stages.store import made
from tests.support.models import TinyTransformer
from tests.support.schedules import schedule

REPLICAS, RANKS, MICROBATCHES = 2, 2, 3
Wrap = Callable[[nn.Module, DeviceMesh], nn.Module]


def in_part(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    blocks = module.get_submodule("blocks")
    assert isinstance(blocks, nn.Sequential)
    blocks[0] = DistributedDataParallel(blocks[0], process_group=mesh.get_group())
    return module


def compiled(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    wrapped = torch.compile(DistributedDataParallel(module, process_group=mesh.get_group()))
    assert isinstance(wrapped, nn.Module)
    return wrapped


WRAPS: dict[str, Wrap] = {
    "it is wrapped in DistributedDataParallel": lambda module, mesh: DistributedDataParallel(
        module, process_group=mesh.get_group()
    ),
    "blocks.0 is wrapped in DistributedDataParallel": in_part,
    "_orig_mod is wrapped in DistributedDataParallel": compiled,
    "it is wrapped in FullyShardedDataParallel": lambda module, mesh: FullyShardedDataParallel(
        module, process_group=mesh.get_group(), device_id=torch.device("cpu")
    ),
    "it is wrapped in replicate": lambda module, mesh: replicate(
        module, process_group=mesh.get_group()
    ),
    "it is wrapped in replicate, ": lambda module, mesh: replicate_with_fsdp(module, mesh=mesh),
}


@pytest.fixture(scope="module")
def outcomes() -> dict[int, list[str]]:
    return launch_ranks(tried, REPLICAS * RANKS, timeout=200, message_timeout=60)


def test_what_reduces_by_itself_is_refused_in_a_line_that_names_data_group(
    outcomes: dict[int, list[str]],
) -> None:
    for said in outcomes.values():
        for text, what in zip(said, WRAPS, strict=True):  # of whichever rank was first
            assert any(f"stages[{rank}]: {what}" in text for rank in range(RANKS))
            assert "data_group" in text
            assert "\n" not in text


def tried() -> list[str]:
    mesh = init_device_mesh("cpu", (REPLICAS, RANKS), mesh_dim_names=("dp", "pp"))
    return [_refused(wrap, mesh) for wrap in WRAPS.values()]


def _stage(mesh: DeviceMesh) -> tuple[int, nn.Module]:
    rank = mesh.get_local_rank("pp")
    return rank, made(TinyTransformer().stages(RANKS)[rank], rank)


def _refused(wrap: Wrap, mesh: DeviceMesh) -> str:
    """Without ``data_group``, as whoever reduces by a wrapper has it."""
    source, plan = TinyTransformer(), schedule("1f1b", RANKS, MICROBATCHES)
    rank, module = _stage(mesh)
    stages = {rank: wrap(module, mesh["dp"])}
    with pytest.raises(InputError) as error:
        Pipeline(compile_schedule(plan), stages, loss=source.loss, group=mesh["pp"].get_group())
    return str(error.value)
