"""Ops and instructions as text, weight versions, and values in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeloom import build
from pipeloom.compiler import footprint
from pipeloom.ir import (
    InfeasibleError,
    Op,
    OpKind,
    Profile,
    Schedule,
    StageProfile,
    pack,
    staleness,
    unpack,
    versions,
)
from pipeloom.solver import build_family

# ops as objects, as text and packed ---------------------------------------------------------------


PLACES = st.integers(0, 2**16 - 1), st.integers(0, 2**40 - 1)
OPS = st.builds(Op, st.sampled_from(OpKind), *PLACES)


@given(OPS)
def test_text_reads_back(op: Op) -> None:
    assert Op.parse(str(op)) == op


@given(st.lists(OPS))
def test_packed_reads_back(ops: list[Op]) -> None:
    assert unpack(pack(ops)) == ops
    assert [Op.unpack(op.packed) for op in ops] == ops


# PipeDream: a step after each microbatch's gradient, versions of weights, and their verification
# ----


def built(ranks: int, microbatches: int, name: str = "pipedream") -> Schedule:
    stage = StageProfile(1.0, 1.0, 1.0, weight_bytes=10.0)
    return build_family(name, Profile((stage,) * ranks, ranks), microbatches)


def test_a_stage_lags_by_the_stages_after_it() -> None:
    assert staleness(built(4, 8)) == (3, 2, 1, 0)
    assert versions(built(4, 8)) == (4, 3, 2, 1)
    assert staleness(built(4, 2)) == (1, 1, 1, 0)
    assert staleness(built(4, 8, "1f1b")) == (0, 0, 0, 0)
    assert versions(built(4, 8, "1f1b")) == (1, 1, 1, 1)


def test_all_versions_count_as_memory() -> None:
    assert footprint(built(3, 6)).weights == (30.0, 20.0, 10.0)


# sizes, times and counts in words -----------------------------------------------------------------


@pytest.mark.parametrize("memory", [1 / 3, 1234.5678, 1_610_612_735, 7**17, 2**49 + 1])
def test_a_size_that_suffices_can_be_typed_as_a_limit(memory: float) -> None:
    profile = Profile((StageProfile(1.0, 1.0, 1.0, memory),), 1)
    with pytest.raises(InfeasibleError) as caught:
        build("1f1b", profile, 1, memory_limit=memory / 2)
    _, _, told = str(caught.value).partition("the smallest limit for this family is ")
    (limit,) = build("1f1b", profile, 1, memory_limit=told).problem.memory_limit
    assert memory <= limit <= memory * (1 + 1e-4)
