"""Stages in ``fully_shard`` hold shards; stages that do not fit their mesh are refused in a line.

That meshes train as one process does is in `tests/parity`."""

from __future__ import annotations

from functools import cache

import pytest

from tests.distributed.cases import sharded
from tests.distributed.cases.mesh_refusals import WRAPS, refusals
from tests.support.launched import in_one_launch


@cache
def results() -> tuple[list[sharded.Found], dict[str, str]]:
    """Of each process what it found of shards, and what is refused."""
    found, said = in_one_launch(4, [(sharded.found, ()), (refusals, ())])
    return found, said[0]


def test_each_process_keeps_its_shard_alone_between_steps() -> None:
    for found in results()[0]:
        assert found.left == 0
        assert 0.4 < found.share < 0.6


def test_gradients_of_lower_precision_add_up_in_the_parameters_own() -> None:
    for found in results()[0]:
        assert 0 < found.lower < 0.05


def test_after_close_fully_shard_reduces_and_releases_by_itself() -> None:
    for found in results()[0]:
        assert found.same
        assert 0 < found.forward < found.whole  # the root keeps its own until the backward
        assert found.backward == 0


SAID = {
    "ties": "expected copies laid out alike, got S(0) at (",
    "copies averaged": "0.bias: expected a copy of it on each process of data_group, [",
    "experts unnamed": "0.bias [8] is not on all of them: experts that each has of its own",
    "some experts": "0.weight: expected a copy of it on each process of data_group, [0, 1, 2, 3]",
    "sharded in part": "expected fully_shard over the processes of data_group, [0, 1, 2, 3], got",
    "block sharded": "expected fully_shard on the stage itself",
    "shards averaged by nobody": "data_group: expected",
    "over ranks": "expected those of one rank in their pipelines, got [0, 0, 1, 1]",
    "output": "expected this process's part of its output, got a DTensor",
    "sequence": "0.norm.bias: expected one gradient on the processes [0, 1], each of which",
    "saved beside others": "norm_groups: expected the process groups over which",
    "saved of shards": "norm_groups: '0.weight': expected a DTensor, whose",
    **dict.fromkeys(WRAPS, "data_group"),
}


@pytest.mark.parametrize("name", SAID)
def test_what_does_not_fit_a_mesh_is_told(name: str) -> None:
    line = results()[1][name]
    assert SAID[name] in line
    assert "\n" not in line


@pytest.mark.parametrize("what", WRAPS)
def test_what_reduces_by_itself_is_named(what: str) -> None:
    """By whichever rank was first."""
    assert any(f"stages[{rank}]: {what}" in results()[1][what] for rank in (0, 1))
