"""Programs of several numbers of microbatches train one pipeline's stages in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from pipeloom import optimize
from pipeloom.compiler import compile_schedule
from pipeloom.ir import InputError, Profile, Program, StageProfile
from pipeloom.runtime import Pipeline, launch_ranks
from tests.support.hub import on_threads, own
from tests.support.models import TinyTransformer
from tests.support.schedules import schedule

COUNTS = (4, 2, 6)


def test_programs_are_made_once() -> None:
    made: list[int] = []
    pipeline = Pipeline(
        compile_schedule(schedule("1f1b", 1, 4)),
        [nn.Linear(2, 2)],
        loss=nn.functional.mse_loss,
        programs=lambda n: made.append(n) or compile_schedule(schedule("1f1b", 1, n)),
    )
    for count in (4, 2, 2, 6, 4, 6):
        x = torch.ones(count, 2)
        pipeline.step(x, target=x, microbatches=count)
        assert {op.op.microbatch for op in pipeline.trace()} == {*range(count)}
    assert made == [2, 6]


def test_exchanges_leave_no_connections_of_relayed_norms_behind() -> None:
    """Two stages on three ranks: the last one relays nothing."""
    profile = Profile((StageProfile(1.0, 1.0, 1.0),) * 2, 3)
    program = optimize(profile, 4, placement=[0, 1], work_limit=0.01).schedule
    programs = [compile_schedule(program, post_validation=True) for _ in range(4)]
    for counts in launch_ranks(_groups, 3, (programs,), timeout=100).values():
        assert counts == counts[:1] * 3


def _groups(programs: Sequence[Program]) -> list[int]:
    """The process groups that there are after each step by a program of its own."""
    stages = [nn.Linear(2, 2), nn.Linear(2, 2)]
    options: Any = {"optimizer": partial(torch.optim.SGD, lr=0.1), "clip_grad_norm": 1.0}
    pipeline = Pipeline(programs[0], stages, loss=nn.functional.mse_loss, **options)
    found = []
    for program in programs[1:]:
        pipeline.step(torch.ones(4, 2), target=torch.zeros(4, 2), program=program)
        found.append(len(dist.distributed_c10d._world.pg_map))
    pipeline.close()
    return found


def refused(programs: Mapping[int, Program]) -> list[str]:
    """What wrong numbers of microbatches are told before the first step, after which ranks go on,
    and after it."""
    source, first = TinyTransformer(), programs[COUNTS[0]]

    def of_family(count: int) -> Program:
        if count == 3:
            raise ZeroDivisionError("3 do not fit")
        return programs[2] if count == 5 else programs[count]

    pipeline = Pipeline.from_source(first, source, programs=of_family, transport=own())
    unlike = {"microbatches": 2} if pipeline.rank else {"program": first}
    asked: list[dict[str, Any]] = [unlike, {"microbatches": 2, "program": first}]
    asked += [{"microbatches": count} for count in (2 + 2 * pipeline.rank, 0, True, 3, 5, 2, 3)]
    told = []
    for given in asked:
        inputs, targets = source.batch(0, 2)
        try:
            pipeline.step(inputs, target=targets, **given)
        except InputError as error:
            told.append(str(error))
    return told


def test_wrong_numbers_are_refused_on_all_ranks() -> None:
    programs = {n: compile_schedule(schedule("1f1b", 2, n), tied=[(0, 1)]) for n in COUNTS}
    found = on_threads(refused, 2, (programs,), timeout=60)
    assert found[0] == found[1]
    assert found[0][0].startswith("program: expected one on all ranks, got ")
    assert found[0][1:] == [
        f"rank 0: microbatches: expected {COUNTS[0]}, as program= has, got 2",
        "microbatches: expected one number on all ranks, got [2, 4]",
        "rank 0: microbatches: expected a number of at least 1, got 0",
        "rank 0: microbatches: expected a number of at least 1, got True",
        "rank 0: programs: 3 microbatches: ZeroDivisionError: 3 do not fit",
        "rank 0: programs: expected a program of 5 microbatches, got 2",
        "programs: 3 microbatches: ZeroDivisionError: 3 do not fit",
    ]


@pytest.mark.parametrize(
    ("family", "message"),
    [
        (
            "weipipe-interleave",
            "program: expected one that sends activations, as the pipeline's, n",
        ),
        ("zb-v", r"program: expected its stages on ranks \[\[0\]\], where the pipeline has them"),
    ],
)
def test_programs_that_cannot_share_stages_are_refused(family: str, message: str) -> None:
    ranks = 2 if family == "weipipe-interleave" else 1
    other = compile_schedule(schedule(family, ranks, 2))
    pipeline = Pipeline(compile_schedule(schedule("1f1b", 1, 2)), [nn.Linear(2, 2)])
    with pytest.raises(InputError, match=message):
        pipeline.with_program(other)
