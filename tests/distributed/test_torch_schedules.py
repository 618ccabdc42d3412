"""Our programs inside of what torch.distributed.pipelining has, and as a CSV in its runtime: equal
to its own schedules, with the same stages, batches and losses. Its traces are read as profiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleInterleavedZeroBubble
from torch.distributed.pipelining.schedules import (
    PipelineScheduleMulti,
    _PipelineScheduleRuntime,
    get_schedule_class,
)

from pipeloom import PlannedSchedule, export, profile_from
from pipeloom.ir import InputError, OpKind, Schedule
from tests.support.launched import in_one_launch
from tests.support.models import TinyTransformer, difference
from tests.support.one_rank import Of
from tests.support.schedules import schedule

RANKS = 4
CASES = (
    ("GPipe", "1f1b", 5, True),
    ("1F1B", "zb-h1", 6, False),
    ("Interleaved1F1B", "interleaved-1f1b:2", 4, True),
    ("ZBVZeroBubble", "zb-v", 6, False),
)
"""torch's schedule, our family, microbatches, whether gradients are scaled."""
WEIGHT = {"weight": 2.0}
SHARDED = 3  # microbatches


@dataclass(frozen=True)
class Outcome:
    """How far gradients are from torch's, after one step and after two, and by torch's own runtime;
    whether losses and outputs, of a step and of an evaluation, are equal to torch's to the last
    digit."""

    gradients: float
    accumulated: float
    by_csv: float
    stepped: bool
    evaluated: bool


def compared() -> list[Outcome]:
    return [_compared(*case) for case in CASES]


def sharded() -> list[float]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    return [_sharded(mesh, divisor) for divisor in (None, 1.0)]


def scaled_by(m: Any, x: Tensor, *, rows: Tensor, factor: float, mask: Mask) -> Tensor:
    """What a stage gives with keyword arguments: a tensor of each microbatch, a value of all, an
    object of each."""
    out: Tensor = m.inner(x)
    return out * (rows * factor * mask.by)[:, None, None].to(out.dtype)


class Mask:
    """What no tensor is, as block masks are not."""

    def __init__(self, by: float) -> None:
        self.by, self.shape = by, (1, 1)


def loss_of(output: Tensor, target: Tensor, *, weight: float = 1.0) -> Tensor:
    return weight * nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def stages_of(family: str, microbatches: int) -> list[PipelineStage]:
    """This rank's, made alike each time."""
    plan = schedule(family, RANKS, microbatches).problem
    make, device = TinyTransformer().stages(plan.stages), torch.device("cpu")
    mine = plan.placement.stages_of(dist.get_rank())
    return [PipelineStage(Of(scaled_by, inner=make[s]()), s, plan.stages, device) for s in mine]


def _compared(name: str, family: str, microbatches: int, scaled: bool) -> Outcome:
    kind, source, first = get_schedule_class(name), TinyTransformer(), dist.get_rank() == 0
    theirs, ours = stages_of(family, microbatches), stages_of(family, microbatches)
    given: Any = theirs if issubclass(kind, PipelineScheduleMulti) else theirs[0]
    torchs = kind(given, microbatches, loss_fn=loss_of, scale_grads=scaled)
    program = schedule(family, RANKS, microbatches)
    mine = PlannedSchedule(ours, microbatches, loss_of, program=program, scale_grads=scaled)
    inputs, targets = map(torch.cat, source.batch(0, microbatches))
    rows = torch.linspace(0.5, 1.5, len(inputs), dtype=torch.float64)
    plain = {"rows": rows, "factor": 0.5, "mask": Mask(1.0)}
    whole = {"target": targets, "loss_kwargs": WEIGHT, **plain}
    arguments = [inputs] if first else []
    stepped = _results(torchs.step, arguments, whole)
    # an evaluation of torch's scales them once more
    expected = [None if p.grad is None else p.grad.clone() for p in _parameters(theirs)]
    # torch's own cannot evaluate a V: it looks for gradients there
    evaluated = stepped if name.startswith("ZBV") else _results(torchs.eval, arguments, whole)
    found = _results(mine.step, arguments, whole)
    gradients = _worst(ours, expected, 1)
    known = _results(mine.eval, arguments, whole)
    cut = [x.chunk(microbatches) for x in (inputs, targets, rows)]
    masks = [Mask(0.5 + j % 2) for j in range(microbatches)]
    mine.step(
        arg_mbs=[(x,) for x in cut[0]] if first else None,
        kwarg_mbs=[
            {"rows": x / m.by, "factor": 0.5, "mask": m} for x, m in zip(cut[2], masks, strict=True)
        ],
        target_mbs=list(cut[1]),
        loss_kwargs=WEIGHT,
        return_outputs=False,
    )
    mine.pipeline.close()
    again = stages_of(family, microbatches)
    _by_csv(again, program, scaled).step(*arguments, **whole)
    return Outcome(
        gradients,
        _worst(ours, expected, 2),
        _worst(again, expected, 1),
        _same(found, stepped),
        _same(known, evaluated),
    )


def _by_csv(stages: list[PipelineStage], plan: Schedule, scaled: bool) -> Any:
    count = plan.problem.microbatches
    runtime = _PipelineScheduleRuntime(list(stages), count, loss_fn=loss_of, scale_grads=scaled)
    with NamedTemporaryFile("w") as file:
        file.write(export(plan, "torch-csv").text)
        file.flush()
        runtime._load_csv(file.name, format="compute_only")
    return runtime


def _results(run: Any, arguments: list[Tensor], given: dict[str, Any]) -> list[Tensor]:
    """Losses and outputs, where the last stage is."""
    losses: list[Tensor] = []
    outputs = run(*arguments, losses=losses, **given)
    return [x.detach().clone() for x in (*losses, *([] if outputs is None else [outputs]))]


def _same(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    return len(found) == len(expected) and all(map(torch.equal, found, expected))


def _parameters(stages: Sequence[PipelineStage]) -> list[nn.Parameter]:
    return [p for stage in stages for p in stage.submod.parameters()]


def _worst(ours: list[PipelineStage], expected: Sequence[Tensor | None], times: int) -> float:
    pairs = zip(_parameters(ours), expected, strict=True)
    return max(difference(p.grad, times * grad) for p, grad in pairs if grad is not None)


def _sharded(mesh: DeviceMesh, divisor: float | None) -> float:
    """How far the gradients of replicas with shards are from one process's mean, or where a
    divisor is set from its sum over that; two modules are wrapped together."""
    source, count = TinyTransformer(), 2
    rank, replica = mesh["pp"].get_local_rank(), mesh["dp"].get_local_rank()
    modules = [make() for make in source.stages(count)]
    stage = PipelineStage(
        modules[rank], rank, count, torch.device("cpu"), group=mesh["pp"].get_group()
    )
    if rank:
        fully_shard([stage.submod.norm, stage.submod.head], mesh=mesh["dp"])
    fully_shard(stage.submod, mesh=mesh["dp"])
    if divisor is not None:
        for part in stage.submod.modules():
            getattr(part, "set_gradient_divide_factor", lambda factor: None)(divisor)
    plan = schedule("zb-h1", 2, SHARDED)
    planned = PlannedSchedule(stage, SHARDED, loss_of, program=plan)
    inputs, targets = map(torch.cat, source.batch(0, 2 * SHARDED))
    mine = [x.chunk(2)[replica] for x in (inputs, targets)]
    planned.step(*([mine[0]] if rank == 0 else []), target=mine[1])
    found = [p.grad.full_tensor() for p in stage.submod.parameters()]
    planned.pipeline.close()
    whole = [make() for make in source.stages(count)]
    loss_of(whole[1](whole[0](inputs)), targets).backward()
    scale = 1.0 if divisor is None else 2 / divisor
    expected = [scale * p.grad for p in whole[rank].parameters() if p.grad is not None]
    return max(map(difference, found, expected))


def refused() -> list[str]:
    """A line for each thing that does not go together, the same on all ranks."""
    stages, program = stages_of("1f1b", 4), schedule("1f1b", RANKS, 4)
    arguments: dict[str, Any] = {
        **{"stages": stages, "n_microbatches": 4, "loss_fn": loss_of, "program": program}
    }
    used = PlannedSchedule(**arguments)
    lines = [_said(PlannedSchedule, **(arguments | given)) for given in UNMADE.values()]
    lines += [_said(used.step, **given) for given in UNSTEPPED.values()]
    used.pipeline.close()
    return lines


def _said(call: Any, **given: Any) -> str:
    with pytest.raises(InputError) as error:
        call(**given)
    (line,) = error.value.errors
    return line


UNMADE: dict[str, dict[str, Any]] = {
    "n_microbatches: expected 4, as the program has, got 5": {"n_microbatches": 5},
    "program: made for 2 ranks, the stages' group has 4": {"program": schedule("1f1b", 2, 4)},
    "program: has 8 stages, expected 4 as the stages say": {"program": schedule("zb-v", RANKS, 4)},
    "program: passing: expected activations, got weights": {
        "program": schedule("weipipe-interleave", RANKS, 4)
    },
    "program: updates: expected one optimizer step an iteration, got microbatch": {
        "program": schedule("pipedream", RANKS, 4)
    },
    "optimizer: expected none, as the caller's steps, got": {"optimizer": torch.optim.SGD},
    "stages: expected a PipelineStage or a list of them, got none": {"stages": []},
    "stages[0]: expected a PipelineStage, got Linear": {"stages": [nn.Linear(1, 1)]},
    "nowhere.json: ": {"program": "nowhere.json"},
}
UNSTEPPED: dict[str, dict[str, Any]] = {
    "step: update: expected another name": {"kwarg_mbs": [{"update": True}] * 4},
    "step: nonsense: expected it in kwarg_mbs, beside lists of microbatches": {
        **{"arg_mbs": [()] * 4, "nonsense": 3}
    },
    "step: target: expected it in target_mbs, beside lists of microbatches": {
        **{"arg_mbs": [()] * 4, "target": torch.ones(4)}
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="module")
def found(folder: Path) -> list[list[Any]]:
    """Of each of the functions what it returns on each rank."""
    calls = [(compared, ()), (sharded, ()), (refused, ()), (traced, (folder,))]
    return in_one_launch(RANKS, calls)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_steps_and_evaluations_are_those_of_torchs_own_schedule(
    found: list[list[Any]], case: tuple[str, str, int, bool]
) -> None:
    for each in found[0]:
        outcome: Outcome = each[CASES.index(case)]
        assert max(outcome.gradients, outcome.accumulated, outcome.by_csv) <= 1e-12
        assert outcome.stepped
        assert outcome.evaluated


def test_replicas_with_shards_have_the_mean_or_the_sum_that_they_ask_for(
    found: list[list[Any]],
) -> None:
    assert max(map(max, found[1])) <= 1e-12


def test_what_does_not_go_together_is_one_line(found: list[list[Any]]) -> None:
    for line, start in zip(found[2][0], [*UNMADE, *UNSTEPPED], strict=True):
        assert line.startswith(start)


MICROBATCHES, STEPS, WIDTH = 4, 3, 64


def traced(folder: Path) -> None:
    """One step to warm up, and some under torch's profiler."""
    rank, count = dist.get_rank(), 2 * RANKS
    stages = [
        PipelineStage(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH)),
            *(s, count, torch.device("cpu")),
        )
        for s in range(rank, count, RANKS)
    ]
    schedule = ScheduleInterleavedZeroBubble(stages, MICROBATCHES, loss_fn=nn.functional.mse_loss)  # type: ignore[arg-type]
    x = torch.ones(MICROBATCHES, WIDTH)
    arguments, target = [x] if rank == 0 else [], x if rank == RANKS - 1 else None
    schedule.step(*arguments, target=target)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        for _ in range(STEPS):
            schedule.step(*arguments, target=target)
    profiled.export_chrome_trace(str(folder / f"{rank}.json.gz"))


@pytest.mark.usefixtures("found")
def test_torchs_schedules_are_read_by_their_names(folder: Path) -> None:
    read = profile_from(folder)
    assert (read.profile.num_stages, read.profile.ranks) == (2 * RANKS, RANKS)
    for s, (stage, times) in enumerate(zip(read.profile.stages, read.times, strict=True)):
        assert set(times) == {OpKind.F, OpKind.B, OpKind.W}
        assert {figure.samples for figure in times.values()} == {(STEPS - 1) * MICROBATCHES}
        assert stage.t_f > 0
        assert stage.t_w > 0
        assert (stage.t_b > 0) == (s > 0)  # torch's first stage leaves all to W
