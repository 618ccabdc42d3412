"""Several tensors as one message, and what stages on one rank hand over."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipeloom.ir import InputError
from pipeloom.runtime import (
    ExecutionError,
    Pipeline,
    ShapeError,
)
from pipeloom.runtime.tensors.skip_connections import Skips
from tests.failures.cases import alone, squared


class Calling(nn.Linear):
    """Gives what ``give`` makes of its output."""

    def __init__(self, give: Any) -> None:
        super().__init__(4, 4)
        self.give = give

    def forward(self, *inputs: Tensor, **options: Any) -> Any:
        return self.give(super().forward(inputs[0]), *inputs[1:], **options)


def step(first: Any, last: nn.Module, rows: int = 8, **options: Any) -> Any:
    pipeline = Pipeline(alone(), [Calling(first), last], loss=squared)
    return pipeline.step(torch.ones(rows, 4), target=torch.zeros(rows, 4), **options)


@pytest.mark.parametrize(
    ("give", "message"),
    [
        (lambda y: {"y": y}, "stage 0 .*: expected a tensor or a tuple of tensors, got dict"),
        (lambda y: (y, None), "stage 0 .*: expected a tensor or a tuple of tensors, got tuple"),
        (lambda y: y.long(), r"stage 0 .*: expected a tensor of a floating dtype, got int64\[2, 4"),
        (lambda y: (), "stage 0 .*: expected a tensor of a floating dtype, got none"),
    ],
)
def test_what_no_edge_can_carry_is_refused(give: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        step(give, nn.Linear(4, 4))


def test_an_input_that_is_changed_in_place_is_told_with_what_to_do() -> None:
    with pytest.raises(ExecutionError, match=r"'1F0': .* changed in place: expected a copy"):
        step(lambda y: y, nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4)))


def test_a_gradient_that_was_not_promised_is_an_error() -> None:
    calls = iter([False, False, True, True])

    def give(y: Tensor) -> tuple[Tensor, Tensor]:
        return y, y * 2 if next(calls) else (y * 2).detach()

    with pytest.raises(
        ExecutionError, match=r"0F1.*is \(float32\[2, 4\], float32\[2, 4\]\), was .* without grad"
    ):
        step(give, Calling(lambda y, other: y + other))


def test_options_are_cut_or_given_to_each_microbatch() -> None:
    seen: list[Any] = []

    def give(y: Tensor, *, scale: Tensor, name: str, parts: Tensor) -> Tensor:
        seen.append((scale.tolist(), name, parts.shape))
        return y

    parts = [torch.ones(j + 1) for j in range(4)]
    step(give, Calling(lambda y, **_: y), scale=torch.arange(8), name="x", parts=parts)
    # tried once for each kind, as the shapes of ``parts`` differ
    assert seen[-4:] == [([2 * j, 2 * j + 1], "x", (j + 1,)) for j in range(4)]
    assert len(seen) == 8


def test_outputs_that_do_not_fit_together_are_a_list() -> None:
    lengths = (1, 2, 3, 1)
    inputs = [torch.ones(2, n, 4) for n in lengths]
    targets = [torch.zeros(2, n, 4) for n in lengths]
    pipeline = Pipeline(alone(), [nn.Linear(4, 4), nn.Linear(4, 4)], loss=squared)
    output = pipeline.step(inputs, target=targets)
    assert [x.shape[1] for x in output] == list(lengths)


def test_other_shapes_need_to_be_allowed() -> None:
    modules = [nn.Linear(4, 4), nn.Linear(4, 4)]
    fixed = Pipeline(alone(), modules, loss=squared)
    fixed.step(torch.ones(8, 4), target=torch.zeros(8, 4))
    with pytest.raises(
        ShapeError,
        match=r"stage 0 is given float32\[4, 4\] for microbatch 0, was given float32\[2, 4\] in "
        r"the "
        "first step: varying_shapes=True lets it",
    ):
        fixed.step(torch.ones(16, 4), target=torch.zeros(16, 4))
    varying = Pipeline(alone(), modules, loss=squared, varying_shapes=True)
    for rows in (8, 16, 8):
        assert varying.step(torch.ones(rows, 4), target=torch.zeros(rows, 4)).shape == (rows, 4)


def test_skips_are_checked() -> None:
    for pair in ((0, 0), (1, 0), (0, 4), (-1, 2)):
        with pytest.raises(InputError, match="expected pairs of stages 0 to 3, forward, got"):
            Skips([pair], 4)
    with pytest.raises(ShapeError, match=r"stage 0 .*: 2 skips start here, got 1 outputs"):
        Pipeline(
            alone(), [nn.Linear(4, 4), nn.Linear(4, 4)], loss=squared, skips=[(0, 1), (0, 1)]
        ).step(torch.ones(8, 4), target=torch.zeros(8, 4))
