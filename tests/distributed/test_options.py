"""Computing and sending in bfloat16 rounds as in one process; no barrier is between steps."""

from __future__ import annotations

from functools import cache, partial
from typing import Any, TypeAlias

import pytest
import torch

from pipeloom.compiler import compile_schedule
from pipeloom.ir.model.program import Program
from tests.distributed.cases.options import (
    MICROBATCHES,
    Options,
    Result,
    one_process,
    run_ahead,
    run_options,
)
from tests.parity.cases import ENDS, Case
from tests.support.launched import in_one_launch
from tests.support.models import worst

RANKS, CLIP = 3, 0.3
Results: TypeAlias = dict[Options, list[Result]]
HALF, FULL = torch.bfloat16, torch.float32
PLANS = ("1f1b", "zb-h1", "weipipe-interleave", ENDS)
CASES = [
    *(Options(name, HALF, FULL, clip) for name in PLANS for clip in (None, CLIP)),
    *(Options(name, HALF) for name in PLANS),
    *(Options(name, None, HALF) for name in PLANS),
]


def program(name: str, *, tied: bool = True) -> Program:
    case = Case.of(0, 0, {"plan": name, "ranks": RANKS, "microbatches": MICROBATCHES})
    schedule = case.schedule(MICROBATCHES)
    return compile_schedule(schedule, tied=[[0, RANKS - 1]] if tied else [])


AHEAD = ("weipipe-interleave", ENDS)


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """The cases, and steps ahead with each of their marks."""
    chosen = [(options, program(options.plan)) for options in CASES]
    folder = tmp_path_factory.mktemp("ahead")
    ahead = [(program(name, tied=False), str(folder / str(i))) for i, name in enumerate(AHEAD)]
    found = in_one_launch(RANKS, [(run_options, (chosen,)), *((run_ahead, each) for each in ahead)])
    assert sorted(path.name for path in folder.iterdir()) == ["0", "1"]
    return found


@pytest.fixture(scope="module")
def results(launched: list[list[Any]]) -> Results:
    return {options: [row[i] for row in launched[0]] for i, options in enumerate(CASES)}


expected = cache(partial(one_process, stages=RANKS))


def gradients(results: Results, options: Options) -> float:
    wanted = expected(options).gradients
    return max(worst(row.gradients, wanted) for row in results[options])


def parameters(results: Results, options: Options) -> float:
    wanted = expected(options).parameters
    return max(worst(row.parameters, wanted) for row in results[options])


@pytest.mark.parametrize("options", CASES, ids=str)
def test_masters_and_their_gradients_stay_in_full_precision(
    results: Results, options: Options
) -> None:
    for row in results[options]:
        dtypes = {t.dtype for t in (*row.gradients.values(), *row.parameters.values())}
        assert dtypes <= {FULL}
        assert row.gradients.keys() == row.parameters.keys()
    names = set().union(*(row.parameters for row in results[options]))
    assert names == set(expected(options).parameters)


@pytest.mark.parametrize("options", [o for o in CASES if o.reduce is FULL], ids=str)
def test_computing_in_bfloat16_is_one_processs(results: Results, options: Options) -> None:
    """Sums in float32; later steps may round a weight to the next bfloat16, above or below.

    A W of its own adds rows of an embedding's gradient one by one, unrounded.
    """
    assert gradients(results, options) <= (2.0**-8 if options.plan == "zb-h1" else 2e-6)
    assert parameters(results, options) <= 1e-3
    plain = expected(Options(options.plan, clip=options.clip)).gradients
    assert worst(expected(options).gradients, plain) > 1e-3, "it is not computed in float32"


@pytest.mark.parametrize(
    "options", [o for o in CASES if o.reduce is not FULL and not o.clip], ids=str
)
def test_gradients_that_travel_in_bfloat16_are_rounded_once_a_hop(
    results: Results, options: Options
) -> None:
    """To 8 bits: at most half a unit in the last place for each rank but the last."""
    apart = gradients(results, options)
    assert apart <= RANKS * 2.0**-8
    assert apart > 2.0**-12, "something travels in bfloat16"


@pytest.mark.parametrize("name", AHEAD)
def test_a_rank_goes_on_to_the_next_step_while_another_is_in_this_one(
    launched: list[list[Any]], name: str
) -> None:
    assert sum(map(len, launched[1 + AHEAD.index(name)])) == MICROBATCHES
