"""The public pipeline on one rank, which needs no processes: what ``step`` takes and gives."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipeloom.compiler import compile_schedule
from pipeloom.ir import InputError, Program, dump_schedule, parse_instruction, parse_schedule, timed
from pipeloom.runtime import Pipeline
from pipeloom.runtime.transport.single import SingleTransport
from tests.support.by_hand import by_hand

MICROBATCHES = 3


def program(order: str, tied: tuple[tuple[int, int], ...] = ()) -> Program:
    """Two stages on one rank; ``order`` is repeated for each microbatch."""
    row = " ".join(order.format(j) for j in range(MICROBATCHES))
    return compile_schedule(timed(by_hand(row)), tied=tied)


SPLIT = "0F{0} 1F{0} 1B{0} 0B{0} 1W{0} 0W{0}"
FUSED = "0F{0} 1F{0} 1BW{0} 0BW{0}"


def stages() -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 2)]


def loss(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).pow(2).mean()


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(6, 4), torch.randn(6, 2)


def gradients(modules: list[nn.Module]) -> list[Tensor]:
    return [p.grad for m in modules for p in m.parameters() if p.grad is not None]


def test_the_trace_has_every_op_in_order_and_is_a_schedule_file() -> None:
    x, y = batch()
    pipeline = Pipeline(program(SPLIT), stages(), loss=loss)
    pipeline.step(x, target=y)
    trace = pipeline.trace()
    assert " ".join(str(t.op) for t in trace[:6]) == SPLIT.format(0)
    times = [time for t in trace for time in (t.start, t.end)]
    assert times == sorted(times)
    assert times[0] == 0.0
    assert pipeline.peak_memory > 0
    measured = parse_schedule(dump_schedule(pipeline.gather_trace()), "trace")
    assert measured.known_timing.end[0].tolist() == pytest.approx([t.end for t in trace])
    assert measured.known_timing.peak_memory == (float(pipeline.peak_memory),)


def test_a_fused_backward_holds_nothing_for_later() -> None:
    x, y = batch()
    peaks = {}
    for order in ("0F{0} 1F{0} 1B{0} 0B{0}", "0F{0} 1F{0} 1BW{0} 0BW{0}"):
        weights = " ".join(f"1W{j} 0W{j}" for j in range(MICROBATCHES))
        row = " ".join(order.format(j) for j in range(MICROBATCHES))
        full = f"{row} {weights}" if "BW" not in order else row
        pipeline = Pipeline(compile_schedule(timed(by_hand(full))), stages(), loss=loss)
        pipeline.step(x, target=y)
        peaks["BW" in order] = pipeline.peak_memory
    assert peaks[True] < peaks[False]


class Both(nn.Linear):
    """Its weight is in a product, whose gradient waits for W, and in a sum, whose does not."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.weight.sum()


def test_a_parameter_whose_gradient_comes_in_both_is_in_b() -> None:
    x, y = batch()
    pipeline = Pipeline(program(SPLIT), [stages()[0], Both(4, 2)], loss=loss)
    pipeline.step(x, target=y)
    assert [*pipeline.coverage[1].in_b] == ["weight"]
    assert [*pipeline.coverage[1].in_w] == ["bias"]


@pytest.mark.parametrize(
    ("tied", "message"),
    [
        ([], "reduce 0 1: no parameter is tied between these stages: is tied= missing"),
        ([[(0, "0.weight"), (1, "head")]], "stage 1 has no parameter 'head'"),
        ([[(0, "0.weight"), (1, "weight")]], r"shapes \[4, 4\] and \[2, 4\] differ"),
    ],
)
def test_wrong_ties_are_refused(tied: list[list[tuple[int, str]]], message: str) -> None:
    x, y = batch()
    with pytest.raises(InputError, match=message):
        Pipeline(program(SPLIT, ((0, 1),)), stages(), loss=loss, tied=tied).step(x, target=y)


def test_masters_are_the_parameters_again_after_each_step() -> None:
    x, y = batch()
    modules, seen = stages(), []
    before = [p for m in modules for p in m.parameters()]
    modules[0].register_forward_hook(lambda m, _, out: seen.append((m[0].weight.dtype, out.dtype)))
    adam = partial(torch.optim.AdamW, lr=0.1)
    half = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}
    pipeline = Pipeline(program(SPLIT), modules, loss=loss, optimizer=adam, **half)
    values = [p.detach().clone() for p in before]
    losses: list[Tensor] = []
    output = pipeline.step(x, target=y, losses=losses)
    assert output is not None
    assert output.dtype is torch.bfloat16
    assert {value.dtype for value in losses} == {torch.float32}
    assert set(seen[1:]) == {(torch.bfloat16, torch.bfloat16)}, "all but the trial"
    after = [p for m in pipeline.modules.values() for p in m.parameters()]
    assert [id(p) for p in after] == [id(p) for p in before]
    assert {t.dtype for p in after for t in (p, p.grad) if t is not None} == {torch.float32}
    assert all(not torch.equal(p, value) for p, value in zip(after, values, strict=True))
    states = [s for o in pipeline.optimizers.values() for s in o.state.values()]
    assert {s["exp_avg"].dtype for s in states} == {torch.float32}


def test_a_program_that_goes_on_after_a_step_is_not_clipped() -> None:
    """Each stage stepped once it is done, which is a valid program."""
    whole = program(FUSED)
    (row,) = whole.instructions
    lines = [item for item in row if str(item) != "step 1"]
    at = max(i for i, item in enumerate(lines) if str(item).startswith("1BW")) + 1
    early = replace(whole, instructions=((*lines[:at], parse_instruction("step 1"), *lines[at:]),))
    sgd = partial(torch.optim.SGD, lr=1.0)
    Pipeline(early, stages(), loss=loss, optimizer=sgd)
    with pytest.raises(InputError, match="got '0BW2' after a step on rank 0"):
        Pipeline(early, stages(), loss=loss, optimizer=sgd, clip_grad_norm=1.0)


@pytest.mark.parametrize("options", [{"clip_grad_norm": 1.0}, {"skips": [(0, 5)]}])
def test_a_pipeline_that_cannot_be_made_leaves_no_connections(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[SingleTransport] = []

    def close(self: SingleTransport) -> None:
        closed.append(self)

    monkeypatch.setattr(SingleTransport, "close", close)
    with pytest.raises(InputError):
        Pipeline(program(SPLIT), stages(), loss=loss, **options)
    assert len(closed) == 1
