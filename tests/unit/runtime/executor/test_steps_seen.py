"""Observing a step: in its trace, by torch's profiler, in a failure, and on the host."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.profiler import ProfilerActivity, profile

from pipeloom.compiler import compile_schedule
from pipeloom.ir import OpKind, Profile, StageProfile, dump_schedule, parse_schedule
from pipeloom.runtime import ExecutionError, Pipeline
from tests.support.by_hand import by_hand
from tests.support.one_rank import SPLIT, each, program

ORDER = "0F0 1F0 1B0 0B0 1W0 0W0 0F1 1F1 1BW1 0BW1"
X = torch.ones(4, 4)


class Fails(nn.Module):
    """Fails only when it is profiled."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
            raise RuntimeError("no more")
        return x


def profiled(call: Any) -> list[str]:
    call()  # the first step includes torch's initialization
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        call()
    return [event.name for event in seen.events() if event.is_user_annotation]


def test_torchs_profiler_has_each_instruction_under_its_text() -> None:
    tested = Pipeline(program(ORDER), [nn.Linear(4, 4), nn.Linear(4, 4)], loss=mse_loss)
    row = [str(i) for i in tested.program.instructions[0]]
    shown = [name for name in profiled(lambda: tested.step(X, target=X)) if name in row]
    assert shown == row
    assert " ".join(name for name in shown if name[0].isdigit()) == ORDER
    names = profiled(lambda: tested.eval(X, target=X))
    assert [n for n in names if "F" in n] == ["eval 0F0", "eval 1F0", "eval 0F1", "eval 1F1"]
    assert not {*row} & {*names}
    failing = Pipeline(program(ORDER), [nn.Linear(4, 4), Fails()], loss=mse_loss)
    with pytest.raises(ExecutionError, match=r"op 1 of 10\), '1F0'.*no more"):
        profiled(lambda: failing.step(X, target=X))


def test_the_trace_has_every_op_in_order_and_is_a_schedule_file() -> None:
    pipeline = Pipeline(program(each(SPLIT, 2)), [nn.Linear(4, 4), nn.Linear(4, 4)], loss=mse_loss)
    pipeline.step(X, target=X)
    times = pipeline.marks()
    assert times == sorted(times)
    measured = parse_schedule(dump_schedule(pipeline.gather_trace()), "trace")
    assert " ".join(map(str, measured.ops(0))) == each(SPLIT, 2)
    ends = [(time - times[0]) * 1e3 for time in times[1::2]]
    assert measured.known_timing.start[0][0] == 0.0
    assert measured.known_timing.end[0].tolist() == pytest.approx(ends)
    assert measured.known_timing.peak_memory == (float(pipeline.peak_memory),)


def test_paced_ops_take_their_planned_time_at_least() -> None:
    planned = Profile((StageProfile(t_f=30.0, t_b=20.0, t_w=10.0),), 1)
    paced = compile_schedule(by_hand("0F0 0F1 0B0 0W0 0BW1", profile=planned))
    pipeline = Pipeline(paced, [nn.Linear(4, 4)], loss=mse_loss, pace=True)
    pipeline.step(X, target=X)
    least = {OpKind.F: 30.0, OpKind.B: 20.0, OpKind.W: 10.0, OpKind.BW: 30.0}
    measured = pipeline.gather_trace()
    taken = measured.known_timing.end[0] - measured.known_timing.start[0]
    ops = [*measured.ops(0)]
    assert len(ops) == 5
    assert all(t >= least[op.kind] for op, t in zip(ops, taken, strict=True))
