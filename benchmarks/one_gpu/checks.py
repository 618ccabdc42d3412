"""The device, gradients, B and W apart."""

from __future__ import annotations

import platform
import statistics
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import Tensor, nn

from examples.gpt import GPT, Block
from pipeloom.compiler import compile_schedule
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.program import Program
from pipeloom.runtime.cuda import keep_busy
from pipeloom.runtime.executor.stage_runner import Cell, StageRunner
from pipeloom.runtime.executor.weight_grad_deferral import WeightQueue
from pipeloom.runtime.launch.processes import launch
from pipeloom.runtime.measure.activation_ledger import Memory
from pipeloom.runtime.measure.op_timer import make_clock
from pipeloom.runtime.stages.store import made
from pipeloom.runtime.tensors.stage_interface import Spec, StageInterface
from pipeloom.runtime.train.loop import train_step
from pipeloom.runtime.train.settings import RunSettings
from pipeloom.runtime.train.train import make_pipeline
from pipeloom.solver.families import build_family

from .sizes import Size
from .telling import Tell, guarded

PACKAGES = ("torch", "numpy", "numba", "ortools", "pulp")


def environment(size: Size, device: str, tell: Tell) -> None:
    tell("python", platform.python_version())
    tell("packages", {name: _version(name) for name in PACKAGES})
    if device != "cuda":
        tell("device", "cpu")
        return
    properties = torch.cuda.get_device_properties(0)
    tell("device", properties.name)
    tell("multiprocessors", properties.multi_processor_count)
    tell("memory", properties.total_memory)
    tell("cuda", torch.version.cuda)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


FAMILIES = ("1f1b", "zb-h1", "zb-v", "weipipe-interleave")


def uniform(family: str, ranks: int, microbatches: int) -> Program:
    chunks = 2 if family == "zb-v" else 1
    stages = (StageProfile(1.0, 1.0, 1.0),) * (ranks * chunks)
    return compile_schedule(build_family(family, Profile(stages, ranks), microbatches))


def gradients(size: Size, device: str, tell: Tell) -> None:
    """Each family's against one process's, in float64: the largest difference relative to the
    largest gradient."""
    source = GPT(layers=4, width=64, heads=2, context=32, dtype=torch.float64)
    for family in FAMILIES:
        with guarded(tell, family):
            program = uniform(family, 2, 4)
            found = launch(_gradients, 2, (program, source, device), device=device)
            expected = _expected(source, program.schedule.problem.stages, 4, device)
            pairs = [(g, expected[name]) for row in found.values() for name, g in row.items()]
            assert {name for row in found.values() for name in row} == {*expected}
            tell(family, max(float((g - e).abs().max() / e.abs().max()) for g, e in pairs))


def _gradients(program: Program, source: GPT, device: str) -> dict[str, Tensor]:
    settings = RunSettings(dtype="float64", device=device)
    pipeline = make_pipeline(program, source, settings)
    train_step(pipeline, source, 0, settings)
    pipeline.close()
    return _named(pipeline.modules)


def _expected(source: GPT, count: int, microbatches: int, device: str) -> dict[str, Tensor]:
    modules = {s: made(stage, s).to(device) for s, stage in enumerate(source.stages(count))}
    for inputs, target in zip(*source.batch(0, microbatches), strict=True):
        out = inputs.to(device)
        for module in modules.values():
            out = module(out)
        (source.loss(out, target.to(device)) / microbatches).backward()  # type: ignore[no-untyped-call]
    return _named(modules)


def _named(modules: dict[int, nn.Module]) -> dict[str, Tensor]:
    return {
        f"{stage}.{name}": parameter.grad.cpu()
        for stage, module in modules.items()
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }


def split(size: Size, device: str, tell: Tell) -> None:
    """(B + W) / BW of two blocks, medians of paired runs in bfloat16 with gradients
    accumulating."""
    for width in size.widths:
        with guarded(tell, str(width)):
            tell(str(width), _split(width, size.rows, torch.device(device)))


def _split(width: int, rows: int, device: torch.device, rounds: int = 12) -> dict[str, float]:
    blocks = nn.Sequential(*(Block(width, max(1, width // 128)) for _ in range(2)))
    blocks.to(device, torch.bfloat16)
    length = min(rows, 1024)
    shape = (rows // length, length, width)
    memory, interface = Memory(), StageInterface.one(Spec(shape, torch.bfloat16))
    seed = torch.ones((), device=device)
    runner = StageRunner(1, blocks, memory=memory, last=False, loss=None, seed=seed)
    fused, apart = Cell(None, interface), Cell(WeightQueue(memory), interface)
    x, dy = torch.randn(2, *shape, device=device).to(torch.bfloat16)
    clock = make_clock(6, device)
    calls = [(fused, runner.backward), (apart, runner.backward), (apart, runner.weight)]
    samples: list[list[float]] = []
    for _ in range(rounds + 3):
        clock.start()
        keep_busy(device, 20.0)  # the host is ahead from here on
        for i, (cell, run) in enumerate(calls):
            if run is not runner.weight:
                cell.inputs = (x.detach().requires_grad_(),)
                runner.forward(cell)
                cell.output, cell.dy = (), (dy,)
            clock.timed(lambda run=run, cell=cell: run(cell), 2 * i)()  # type: ignore[misc]
            cell.dx = ()
        marks = clock.seconds()
        samples.append([1e3 * (marks[2 * i + 1] - marks[2 * i]) for i in range(3)])
    bw, b, w = (statistics.median(times) for times in zip(*samples[3:], strict=True))
    ratio = statistics.median((b + w) / bw for bw, b, w in samples[3:])
    return {"bw_ms": bw, "b_ms": b, "w_ms": w, "ratio": ratio}
