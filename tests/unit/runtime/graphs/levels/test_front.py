"""The front of bytes held against time to compute again: its points are the best that there are,
and hold what they say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, combinations, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, fx, nn
from torch.nn import functional

from pipeloom.runtime.graphs.cut import Cut, cut, cut_forward
from pipeloom.runtime.graphs.joint import Role, trace_joint
from pipeloom.runtime.graphs.levels.call_costs import call_cost
from pipeloom.runtime.graphs.levels.front import Front
from pipeloom.runtime.graphs.liveness import nbytes, root_of
from pipeloom.runtime.graphs.torch_internals.aten import draws
from tests.unit.runtime.graphs.test_graph_runner import MODELS, WIDTH, X


def traced(module: nn.Module, x: Tensor = X) -> Cut:
    leaf = x.clone().requires_grad_(x.is_floating_point())
    return cut(trace_joint(module, [leaf], lambda called, given: [called(*given)]))


class Chain(nn.Module):
    """Steps that each save something, of unlike sizes and times."""

    def __init__(self, kinds: list[int]) -> None:
        super().__init__()
        self.kinds = kinds
        self.wide = nn.Linear(WIDTH, 8 * WIDTH, bias=False)
        self.narrow = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        for kind in self.kinds:
            x = STEPS[kind](self, x)
        return x


STEPS: list[Callable[[Chain, Tensor], Tensor]] = [
    lambda self, x: functional.gelu(x),
    lambda self, x: self.narrow(x),
    lambda self, x: x + self.narrow(x).exp(),
    lambda self, x: self.wide(x)[..., :WIDTH] * x,
    lambda self, x: functional.dropout(x, 0.5),
]


def fronts() -> Iterator[Front]:
    for name, (make, x) in MODELS.items():
        if name not in ("autocast", "last"):
            found = traced(make(), x)
            yield Front(found, found.saved)


@pytest.mark.filterwarnings("ignore")
def test_deeper_levels_hold_less_and_take_longer() -> None:
    several = 0
    for front in fronts():
        shares = front.shares(15)
        choices = [front.within(share) for share in shares]
        assert shares == sorted(set(shares), reverse=True)
        assert all(0 < share < 100 for share in shares)
        for share, choice in zip(shares, choices, strict=True):
            assert choice.held == nbytes(choice.kept) <= share / 100 * front.whole
        for a, b in pairwise(choices):
            assert a.held > b.held
            assert a.time < b.time
        for a, b, c in zip(choices, choices[1:], choices[2:], strict=False):
            assert (b.time - a.time) * (b.held - c.held) <= (c.time - b.time) * (a.held - b.held)
        several += len(shares) > 1
    assert several >= 5


@pytest.mark.filterwarnings("ignore")
def test_fewer_levels_are_some_of_more() -> None:
    for front in fronts():
        for count in range(4):
            shares = front.shares(count)
            assert len(shares) <= count
            assert {*shares} <= {*front.shares(15)}


def brute_force(found: Cut) -> list[tuple[int, int]]:
    """Bytes and time of every set of values that may be kept."""
    inputs = {n for n, v in found.joint.inputs.items() if v.role is not Role.TANGENT}
    nodes = [n for n in cut_forward(found, [], found.saved)[1].calls if n not in inputs]
    roots = [n for n in nodes if root_of(n) is n and isinstance(n.meta["val"], Tensor)]
    sets = chain.from_iterable(combinations(roots, size) for size in range(len(roots) + 1))
    return [pair for kept in sets if (pair := _of(found, kept)) is not None]


def _of(found: Cut, kept: tuple[fx.Node, ...]) -> tuple[int, int] | None:
    again = cut_forward(found, kept, found.saved)[1].calls
    costs = [call_cost(node) for node in again]
    if any(draws(node) for node in again):
        return None
    return nbytes(kept), sum(cost or 0 for cost in costs)


@settings(max_examples=12)
@given(st.lists(st.integers(0, len(STEPS) - 1), min_size=1, max_size=3))
def test_no_set_of_values_is_below_the_front(kinds: list[int]) -> None:
    torch.manual_seed(0)
    found = traced(Chain(kinds))
    front, every = Front(found, found.saved), brute_force(found)
    choices = {choice.held: choice for choice in map(front.within, range(101))}
    assert min(choices) == min(held for held, _ in every)
    for choice in choices.values():
        assert (choice.held, choice.time) in every
        assert not any(h <= choice.held and t < choice.time for h, t in every)
    for less, more in pairwise(choices[held] for held in sorted(choices)):
        freed, longer = more.held - less.held, less.time - more.time
        least = freed * less.time + longer * less.held
        assert all(freed * time + longer * held >= least for held, time in every)


def test_what_draws_random_numbers_is_kept() -> None:
    found = traced(Chain([4, 1]))
    deepest = Front(found, found.saved).within(0)
    assert deepest.held > X.nbytes
    assert all(draws(source) for node in deepest.kept for source in node.all_input_nodes)


class Counting(nn.Module):
    """Multiplies by a buffer that each forward changes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.after = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("scale", torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x) * self.scale.clone()
        self.scale.mul_(1.5)
        out: Tensor = self.after(functional.gelu(y))
        return out


def test_a_buffer_that_a_forward_changes_is_kept_as_it_was() -> None:
    found = traced(Counting())
    kept = Front(found, found.saved).within(0).kept
    assert sum(value.meta["val"].numel() == WIDTH for value in kept) == 1


def test_the_same_stage_has_the_same_levels() -> None:
    first, second = (Front(c, c.saved) for c in (traced(Chain([0, 3, 1])) for _ in range(2)))
    assert first.shares(5) == second.shares(5)
    for share in first.shares(5):
        names = [[node.name for node in front.within(share).kept] for front in (first, second)]
        assert names[0] == names[1]
