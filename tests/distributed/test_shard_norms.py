"""Clipping where parameters are shards that are no DTensors: one norm for all, one process's."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.distributed.cases.shards import CLIP, Case, Outcome, refusals, run_cases
from tests.support.launched import in_one_launch

CASES = [
    Case("zb-h1", ahead=True),
    Case("1f1b", ranks=1, sharded=True),
]


@cache
def launched() -> list[list[Any]]:
    return in_one_launch(4, [(run_cases, (CASES,)), (refusals, ())])


def results(case: Case) -> list[Outcome]:
    return [row[CASES.index(case)] for row in launched()[0]]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_shards_are_clipped_by_one_processs_norm(case: Case) -> None:
    rows = results(case)
    for row in rows:
        assert row.norms == pytest.approx(row.expected, rel=1e-12)
        assert min(row.expected) > CLIP, "it clips"
        assert row.apart <= 1e-12
        assert row.norms == rows[0].norms, "with the same bits on all"


def test_groups_that_are_missing_or_do_not_fit_are_told() -> None:
    for said in launched()[1]:
        assert "processes [0, 2] and [1, 3] judge steps each by its own norm" in said["missing"]
        same = (said[key].partition("norm_groups")[2] for key in ("missing", "with a loss scale"))
        assert len({*same}) == 1  # whichever rank was first
        assert "expected processes of one rank in their pipelines" in said["of another rank"]
        assert "'*.gate': no parameter of any stage" in said["of no parameter"]
        assert "expected a pattern for 0.up.bias of stage 0" in said["forgotten"]
        assert "expected a pattern for 0.experts.0.bias of stage 0" in said["experts forgotten"]
        assert "'0.*': expected none for a DTensor" in said["of a DTensor"]
        assert "'*.up.*': expected a process group" in said["no group"]
