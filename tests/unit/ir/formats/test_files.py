"""Files: what is wrong in one is named, all of it at once, each with its key and value."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeloom.ir.errors import InputError
from pipeloom.ir.formats import (
    dump_profile,
    dump_schedule,
    load_profile,
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


def errors_of(data: dict[str, Any]) -> tuple[str, ...]:
    with pytest.raises(InputError) as caught:
        parse_profile(data, "p.json")
    return caught.value.errors


def test_every_fault_of_a_profile_is_reported_at_once() -> None:
    stages = [{**STAGE, "t_f": -1}, {"t_f": "1", "t_b": float("nan"), "m_b": 1, "m_w": 2}]
    assert errors_of(profile(stages=stages, ranks=0, t_comm=True)) == (
        "p.json: ranks: expected a whole number >= 1 and <= 4096, got 0",
        "p.json: t_comm: expected a finite number >= 0 or a P x P matrix of them, got true",
        "p.json: stages[0]: t_f: expected a finite number >= 0, got -1",
        'p.json: stages[1]: t_f: expected a finite number >= 0, got "1"',
        "p.json: stages[1]: t_b: expected a finite number >= 0, got NaN",
        "p.json: stages[1]: t_w: missing; expected a finite number >= 0",
        "p.json: stages[1]: m_w: expected at most m_b (1), got 2",
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"num_stages": 3}, "p.json: num_stages: expected 2, the number of entries in stages"),
        ({"stages": []}, "p.json: stages: expected at least one stage, got []"),
        ({"stages": {}}, "p.json: stages: expected a list, got {}"),
        ({"stages": [STAGE, 4]}, "p.json: stages[1]: expected an object, got 4"),
        ({"ranks": 2.0}, "p.json: ranks: expected a whole number >= 1 and <= 4096, got 2.0"),
        ({"t_comm": [[0, 1]]}, "p.json: t_comm: expected a finite number >= 0 or a 2 x 2"),
        ({"t_comm": -0.5}, "p.json: t_comm: expected a finite number >= 0 or a 2 x 2"),
        ({"memory_limit": [1, 2, 3]}, "p.json: memory_limit: expected a finite number >= 0, or a"),
        ({"memory_limit": float("inf")}, "p.json: memory_limit: expected a finite number >= 0, or"),
        ({"links": {"latency": 1}}, "p.json: links: gigabytes_per_second: missing"),
        ({"links": {"latency": 0, "gigabytes_per_second": 0}},
         "p.json: links: gigabytes_per_second: expected more than 0, got 0"),
        ({"links": {"latency": 0, "gigabytes_per_second": 1, "pairs": [[0, 2]]}},
         "p.json: links: pairs[0]: expected [rank, rank, link], got [0, 2]"),
        ({"links": {"gigabytes_per_second": 1, "pairs": [[0, 2, {"gigabytes_per_second": 1}]]}},
         "p.json: links: pairs[0][1]: expected a rank from 0 to 1, got 2"),
        ({"version": 2}, "p.json: version: expected 1, got 2"),
        ({"format": "other"}, 'p.json: format: expected "pipeloom.profile", got "other"'),
        ({"format": []}, 'p.json: format: expected "pipeloom.profile", got []'),
        ({"name": 3}, "p.json: name: expected a string, got 3"),
    ],
)  # fmt: skip
def test_each_fault_names_key_expected_and_value(changes: dict[str, Any], expected: str) -> None:
    errors = errors_of(profile(**changes))
    assert len(errors) == 1
    assert errors[0].startswith(expected)


def test_one_entry_is_shared_by_all_stages() -> None:
    assert parse_profile(profile(stages=[STAGE], num_stages=4), "p").num_stages == 4
    assert parse_profile(profile(stages=[STAGE]), "p").num_stages == 2


def test_a_single_stage_on_two_ranks_stays_single() -> None:
    single = Profile((StageProfile(1.0, 1.0, 1.0),), 2)
    assert parse_profile(dump_profile(single), "p") == single


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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"format": "pipeloom.pro', "line 1, column 12: not valid JSON: .* .the file ends early"),
        ("[1, 2]", r"expected a JSON object, got \[1, 2\]"),
        ("{'a': 1}", "line 1, column 2: not valid JSON"),
        ('{"a": 1, "a": 2}', "a: expected once, got it twice"),
        ("", "is empty; expected JSON"),
        ("[" * 100_000, "not valid JSON: nested too deeply"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(InputError, match=rf"p\.json: {expected}"):
        load_profile(str(path))


def test_a_directory_or_nothing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a directory; expected a file of JSON"):
        load_profile(str(tmp_path))
    with pytest.raises(InputError, match=r"none\.json: no such file"):
        load_profile(str(tmp_path / "none.json"))
    (tmp_path / "latin").write_bytes(b'{"name": "\xe9"}')
    with pytest.raises(InputError, match="not UTF-8 text"):
        load_profile(str(tmp_path / "latin"))


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


def schedule_document() -> dict[str, Any]:
    stages = (StageProfile(1.0, 1.0, 1.0),) * 2
    return dump_schedule(build_family("1f1b", Profile(stages, 2), 2))


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (
            ("order", 0, 0, "op"),
            "X",
            's: order[0][0]: op: expected F, B, W, BW, R, O or L, got "X"',
        ),
        (("order", 0, 0, "stage"), 9, "s: order[0][0]: 9F0 is outside 2 stages and 2 microbatches"),
        (("order", 0), None, "s: order[0]: expected a list, got null"),
        (("order",), [[]], "s: order: expected 2 lists, one a rank, got 1 list"),
        (("ranks",), 3, "s: ranks: expected 2, as in its profile, got 3"),
        (("passing",), "x", 's: passing: expected activations, weights or mixed, got "x"'),
        (("report", "objective"), 1, "s: report: objective: expected period or makespan, got 1"),
        (("profile", "stages", 0, "t_f"), None, "s: profile: stages[0]: t_f: expected a finite"),
    ],
)
def test_each_fault_of_a_schedule_is_named(
    path: tuple[str | int, ...], value: object, expected: str
) -> None:
    document = schedule_document()
    inner: Any = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(InputError) as caught:
        parse_schedule(document, "s")
    assert any(error.startswith(expected) for error in caught.value.errors), caught.value.errors


def test_each_fault_of_a_program_is_named() -> None:
    program = {
        "format": "pipeloom.program",
        "version": 1,
        "schedule": schedule_document(),
        "instructions": [["0F0", "jump"], []],
        "buffers": [["x1"], ["y1"]],
    }
    with pytest.raises(InputError) as caught:
        parse_program(program, "p")
    assert caught.value.errors == (
        "p: instructions[0][1]: expected an instruction, such as 'recv x1.0 from 0 into 3', "
        'got "jump"',
        "p: buffers[1][0]: expected a kind and a stage, such as 'dy1', got \"y1\"",
    )


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
