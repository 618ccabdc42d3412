"""PipeDream: a step after each microbatch's gradient, versions of weights, and what is checked of
them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeloom.compiler import compile_schedule
from pipeloom.compiler.exporters import EXPORTERS
from pipeloom.ir.cost.memory_footprint import footprint
from pipeloom.ir.errors import InputError, InvalidScheduleError
from pipeloom.ir.formats.schedule_json import dump_schedule, parse_schedule
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule, Updates, staleness, versions
from pipeloom.solver.families import build_family


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


def test_a_step_follows_each_gradient_once_it_is_sent() -> None:
    row = [str(item) for item in compile_schedule(built(2, 3)).instructions[1]]
    kept = [text for text in row if not text.startswith(("recv", "wait", "free"))]
    assert kept == [
        "1F0", "1BW0", "send dy0.0 to 0", "step 1",
        "1F1", "1BW1", "send dy0.1 to 0", "step 1",
        "1F2", "1BW2", "send dy0.2 to 0", "step 1",
    ]  # fmt: skip


def test_the_file_says_so() -> None:
    document = dump_schedule(built(2, 3))
    assert document["updates"] == "microbatch"
    assert parse_schedule(document, "s.json").updates is Updates.MICROBATCH
    assert "updates" not in dump_schedule(built(2, 3, "1f1b"))
    with pytest.raises(InputError, match="updates: expected iteration or microbatch, got 3"):
        parse_schedule(document | {"updates": 3}, "s.json")


def test_what_cannot_be_stepped_within_an_iteration() -> None:
    with pytest.raises(InputError, match=r"tied: expected none where updates come after each"):
        compile_schedule(built(2, 3), tied=[[0, 1]])
    chimera = build_family("chimera", built(2, 4).problem.profile, 4)
    with pytest.raises(InvalidScheduleError, match="expected each stage on one rank"):
        compile_schedule(replace(chimera, updates=Updates.MICROBATCH))


def test_what_steps_once_an_iteration_cannot_take_it() -> None:
    with pytest.raises(
        InputError, match="updates: torch-csv steps once an iteration; got microbatch"
    ):
        EXPORTERS["torch-csv"].write(built(2, 3))
