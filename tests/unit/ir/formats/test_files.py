"""Files are read as they were written, and what is broken in one is all that is said of it."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeloom.compiler import compile_schedule
from pipeloom.ir.errors import InputError
from pipeloom.ir.formats import (
    dump_profile,
    dump_program,
    dump_schedule,
    load_profile,
    load_program,
    load_schedule,
    parse_profile,
    parse_program,
    parse_schedule,
    write_json,
    write_text,
)
from pipeloom.ir.model.ops import Op
from pipeloom.ir.model.profile import Link, Links, Profile, StageProfile
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.report.summaries import facts
from pipeloom.solver.families import build_family

STAGE = {"t_f": 1, "t_b": 2, "t_w": 0.5, "m_b": 1, "m_w": 0.5}


def profile(**changes: object) -> dict[str, Any]:
    plain = {"format": "pipeloom.profile", "version": 1, "stages": [STAGE, STAGE], "ranks": 2}
    return plain | changes


def test_one_entry_is_shared_by_all_stages() -> None:
    assert parse_profile(profile(stages=[STAGE], num_stages=4), "p").num_stages == 4
    assert parse_profile(profile(stages=[STAGE]), "p").num_stages == 2


def test_a_single_stage_on_two_ranks_stays_single() -> None:
    single = Profile((StageProfile(1.0, 1.0, 1.0),), 2, shared_by=1)
    assert parse_profile(dump_profile(single), "p") == single


def test_what_was_dumped_is_loaded() -> None:
    schedule = build_family("1f1b", parse_profile(profile(), "p"), 2)
    program = compile_schedule(schedule)
    assert dump_schedule(load_schedule(dump_schedule(schedule))) == dump_schedule(schedule)
    assert dump_program(load_program(dump_program(program))) == dump_program(program)
    assert load_profile(profile()).num_stages == 2
    with pytest.raises(InputError, match="program: instructions: missing"):
        load_program({"format": "pipeloom.program", "version": 1})


def test_the_most_stages_are_no_fewer_than_there_are() -> None:
    found = parse_profile(profile(max_stages=4), "p")
    assert parse_profile(dump_profile(found), "p") == found
    assert found.split(2).max_stages == 4
    for given in (1, 0, 2.5):
        with pytest.raises(InputError, match=r"p\.json: max_stages: expected .*, got") as caught:
            parse_profile(profile(max_stages=given), "p.json")
        assert len(caught.value.errors) == 1


def test_a_barrier_is_true_or_false() -> None:
    found = parse_profile(profile(barrier=True), "p")
    assert parse_profile(dump_profile(found), "p") == found
    assert found.barrier
    assert not parse_profile(profile(barrier=False), "p").barrier
    with pytest.raises(InputError, match=r"^p\.json: barrier: expected true or false, got 1$"):
        parse_profile(profile(barrier=1), "p.json")


def test_a_broken_profile_is_all_that_is_said_of_its_schedule() -> None:
    """Its guessed sizes made faults of everything else."""
    schedule = dump_schedule(build_family("1f1b", parse_profile(profile(), "p"), 2))
    schedule["profile"]["num_stages"] = 5
    with pytest.raises(InputError) as caught:
        parse_schedule(schedule, "s.json")
    assert caught.value.errors == (
        "s.json: profile: num_stages: expected 2, the number of entries in stages, "
        "or one shared entry, got 5",
    )


@pytest.mark.parametrize(("schedule", "got"), [({}, "missing; expected an object"),
    ({"schedule": None}, "expected an object, got null")])  # fmt: skip
def test_a_program_without_a_schedule_is_one_fault(schedule: dict[str, Any], got: str) -> None:
    program = {"format": "pipeloom.program", "version": 1, "instructions": [], "buffers": []}
    with pytest.raises(InputError) as caught:
        parse_program(program | schedule, "p.json")
    assert caught.value.errors == (f"p.json: schedule: {got}",)


@pytest.mark.parametrize("family", ["zb-h2", "interleaved-1f1b:3", "weipipe-interleave"])
def test_the_schedules_of_the_largest_profile_can_be_read(family: str) -> None:
    stage = dict.fromkeys(("t_f", "t_b", "t_w", "m_b", "m_w", "weight_bytes", "grad_bytes"), 1e80)
    links = {"latency": 1e80, "gigabytes_per_second": 1e-9}
    document = {"format": "pipeloom.profile", "version": 1, "ranks": 3, "stages": [stage]}
    profile = parse_profile(document | {"links": links}, "profile")
    schedule = dump_schedule(build_family(family, profile, 50))
    assert verify_schedule(schedule) == []
    assert parse_schedule(schedule, "schedule").problem.profile == profile.split(
        3 if ":3" in family else 1
    )


def test_a_matrix_of_delays_is_lists_of_lists() -> None:
    """A dumped profile kept the matrix's tuples, which no reader and no verifier takes."""
    delays = Profile((StageProfile(1.0, 1.0, 1.0),) * 2, 2, ((0.0, 0.5), (1.0, 0.0)))
    document = dump_profile(delays)
    assert document["t_comm"] == [[0.0, 0.5], [1.0, 0.0]]
    assert parse_profile(document, "p") == delays
    schedule = dump_schedule(build_family("1f1b", delays, 2))
    assert verify_schedule(schedule) == []


def test_a_dash_is_standard_input_and_output(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    text = json.dumps(profile()).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    loaded = load_profile("-")
    write_json(dump_profile(loaded), "-")
    assert parse_profile(json.loads(capfdbinary.readouterr().out), "-") == loaded


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    write_text("old", str(path))
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json({"a": float("nan")}, str(path))
    with pytest.raises(InputError, match=r"cannot be written: there is no folder .*nowhere"):
        write_text("new", str(tmp_path / "nowhere" / "p.json"))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_latency_is_0_unless_given_and_of_a_pair_that_of_the_links() -> None:
    pairs = [[0, 1, {"gigabytes_per_second": 2}]]
    given = {"latency": 3, "gigabytes_per_second": 1, "pairs": pairs}
    links = parse_profile(profile(links=given), "p.json").links
    assert links == Links(Link(3, 1), ((0, 1, Link(3, 2)),))
    links = parse_profile(
        profile(links={"gigabytes_per_second": 1, "pairs": pairs}), "p.json"
    ).links
    assert links == Links(Link(0, 1), ((0, 1, Link(0, 2)),))


@pytest.mark.parametrize("family", ["1f1b", "weipipe-interleave"])
def test_the_verifier_reads_links_without_latency_alike(family: str) -> None:
    pairs = [[0, 1, {"gigabytes_per_second": 2}]]
    links = {"latency": 0.25, "gigabytes_per_second": 1, "pairs": pairs}
    stages = [{**STAGE, "activation_bytes": 1e6, "weight_bytes": 1e6}] * 3
    given = profile(stages=stages, ranks=3, links=links, t_comm=None)
    document = dump_schedule(build_family(family, parse_profile(given, "p.json"), 4))
    document["profile"] = given
    assert verify_schedule(document) == []


def test_schedules_are_written_without_an_object_an_op(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million pairs have three million ops, an object of each of which took most of the time."""
    schedule = build_family("zb-h1", Profile((StageProfile(1.0, 1.0, 1.0),) * 2, 2), 3)
    expected = [str(op) for op in schedule.ops(0)]

    def made(_: int) -> Op:
        raise AssertionError

    monkeypatch.setattr(Op, "unpack", made)
    written = dump_schedule(schedule)["order"][0]
    assert [f"{op['stage']}{op['op']}{op['microbatch']}" for op in written] == expected
    assert "peak memory" in facts(schedule)
