"""``pack``: sequences into microbatches, their schedules, their picture, and bad input."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import pipeloom as library
from pipeloom.ir.formats import parse_profile
from pipeloom.planner.solving.progress import Searched, Searching
from tests.support.command_line import Command, profile_document, written

LENGTHS = [900, 100, 400, 30, 250, 700, 60, 500, 120, 340]


def lengths_document(**changes: Any) -> dict[str, Any]:
    document = {
        "format": "pipeloom.lengths",
        "version": 1,
        "lengths": LENGTHS,
        "reference_length": 1000,
        "attention": 0.2,
    } | changes
    return {key: value for key, value in document.items() if value is not None}


def packed(*, profile: dict[str, Any] | None = None, **options: Any) -> library.Packing:
    options = {"microbatches": 4, "work_limit": 2.0} | options
    return library.pack(lengths_document(), profile or profile_document(), **options)


def test_a_packing_has_each_sequence_once_and_a_schedule_of_these_microbatches() -> None:
    found = packed(data_parallel=2, microbatches=2, max_tokens=1000)
    sequences = [i for part in found.replicas for each in part for i in each]
    assert sorted(sequences) == list(range(len(LENGTHS)))
    for part, schedule, cost in zip(found.replicas, found.schedules, found.costs, strict=True):
        tokens = [sum(LENGTHS[i] for i in each) for each in part]
        assert max(tokens) <= 1000
        stage = schedule.problem.profile.stages[0]
        for j, each in enumerate(part):
            square = sum(LENGTHS[i] ** 2 for i in each) / 1000**2
            assert stage.at(j).t_f == pytest.approx(0.8 * tokens[j] / 1000 + 0.2 * square)
            assert stage.at(j).t_w == pytest.approx(tokens[j] / 1000)
            assert stage.at(j).m_b == pytest.approx(tokens[j] / 1000)
        assert library.verify(schedule).violations == []
        assert cost == schedule.known_timing.cost(schedule.problem.objective)
    assert found.lower_bound <= found.cost == max(found.costs)


def test_the_same_seed_and_work_give_the_same_packing() -> None:
    assert packed(seed=3).document == packed(seed=3).document


def test_sequences_of_one_length_are_spread_evenly() -> None:
    found = library.pack(
        lengths_document(lengths=[500] * 6), profile_document(), microbatches=3, work_limit=1.0
    )
    assert [len(each) for each in found.replicas[0]] == [2, 2, 2]
    assert library.verify(found.schedules[0]).violations == []


def test_what_stops_the_search_stops_it_in_packings_too() -> None:
    began = time.process_time()
    found = packed(work_limit=None, time_limit=1000.0, should_stop=lambda: True)
    assert found.lower_bound <= found.cost
    assert time.process_time() - began < 40.0


def test_memory_limits_the_tokens_of_a_microbatch(tmp_path: Path) -> None:
    found = packed(memory_limit=1.0)
    assert max(sum(LENGTHS[i] for i in each) for each in found.replicas[0]) <= 1000
    found.write(tmp_path)
    written = json.loads((tmp_path / "profile.json").read_text())
    assert written["memory_limit"] == [1.0] * written["ranks"]
    assert max(found.schedules[0].known_timing.peak_memory) <= 1.0 + 1e-9
    with pytest.raises(library.InfeasibleError, match=r"lengths\[0\]: memory holds 899 tokens"):
        packed(memory_limit=0.8995)


def test_a_models_arithmetic_gives_the_share_of_attention() -> None:
    shares = []
    for length in (2048, 8192):
        document = lengths_document(attention=None, model="llama-3-8b", reference_length=length)
        given = library.pack(document, profile_document(), 2, work_limit=0.5)
        costs = given.schedules[0].problem.profile.stages[0]
        one, other = costs.at(0), costs.at(1)
        shares.append(abs(one.t_f / other.t_f - one.t_w / other.t_w))
        assert one.t_w / other.t_w == pytest.approx(one.m_b / other.m_b)  # no attention in W
    assert shares[1] > 1.5 * shares[0] > 0  # the longer the reference, the more is attention


def test_an_earlier_schedule_is_begun_with(tmp_path: Path) -> None:
    first = packed(memory_limit=2.0)
    again = packed(memory_limit=2.0, start=first.schedules[0], work_limit=0.01)
    assert again.cost <= 1.1 * first.cost
    profile = library.dump_profile(first.schedules[0].problem.profile)
    answer = library.optimize(profile, memory_limit=2.0, start=first.schedules[0], work_limit=1e-6)
    assert answer.cost <= first.cost * (1 + 1e-9)


def test_files_and_the_picture(tmp_path: Path, pipeloom: Command) -> None:
    for name, document in (("l", lengths_document()), ("p", profile_document())):
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    folder = tmp_path / "packed"
    words = [str(tmp_path / "l.json"), "--profile", str(tmp_path / "p.json"), "-m", "2"]
    words += ["--data-parallel", "2", "--work-limit", "1", "-o", str(folder)]
    done = pipeloom("pack", *words)
    assert done.code == 0, done.err
    assert "10 sequences of 3400 tokens in 4 microbatches of 2 replicas" in done.out
    names = {"packing.json", "packing.svg", "profile-0.json", "profile-1.json"}
    names |= {"schedule-0.json", "schedule-1.json"}
    assert {path.name for path in folder.iterdir()} == names
    assert pipeloom("verify", str(folder / "schedule-1.json")).code == 0
    drawn = tmp_path / "again.svg"
    assert pipeloom("show", str(folder / "packing.json"), "-o", str(drawn)).code == 0
    assert drawn.read_text() == (folder / "packing.svg").read_text()
    bars = ElementTree.parse(drawn).iter("{http://www.w3.org/2000/svg}rect")
    assert sum(1 for _ in bars) == 1 + len(LENGTHS)  # the paper, and one a sequence


# what is said of a change to the lengths, and of more options
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "LENGTHS: lengths[0]: expected at most --max-tokens (899), got 900": ({}, "--max-tokens 899"),
    "-m/--microbatches: expected at most 10 in all, one for each sequence of LENGTHS, got 12": (
        {},
        "--data-parallel 3",
    ),
    "--max-tokens: expected at least 1125 for 4500 tokens in 4 microbatches, got 1000": (
        {"lengths": [900] * 5},
        "--max-tokens 1000",
    ),
    "LENGTHS: lengths: expected at least one, got []": ({"lengths": []}, ""),
    "LENGTHS: lengths[1]: expected a whole number >= 1 and <= 1000000000, got 0": (
        {"lengths": [5, 0, 3, 2]},
        "",
    ),
    "LENGTHS: attenton: unknown key; known: format, version, lengths, reference_length, "
    "attention, model": ({"attenton": 1}, ""),
    "LENGTHS: attention: missing; expected the share of a forward that is attention, or "
    "model, not both: a model's arithmetic has it": ({"attention": None}, ""),
    "LENGTHS: attention: expected a number from 0 to 1, or a list of them, one a stage, or "
    "such of t_f, t_b and t_w, got 1.5": ({"attention": 1.5}, ""),
    "LENGTHS: attention: expected a number from 0 to 1, or a list of them, one a stage, or "
    'such of t_f, t_b and t_w, got "0.3"': ({"attention": "0.3"}, ""),
    "LENGTHS: attention: expected a number from 0 to 1, or a list of them, one a stage, or "
    "such of t_f, t_b and t_w, got true": ({"attention": True}, ""),
    "LENGTHS: attention: expected a number from 0 to 1, or a list of them, one a stage, or "
    'such of t_f, t_b and t_w, got {"t_f": 0.3, "t_b": 0.3, "t_r": 0}': (
        {"attention": {"t_f": 0.3, "t_b": 0.3, "t_r": 0}},
        "",
    ),
    "LENGTHS: attention: t_w: expected a number, or one a stage (2), got 3 numbers": (
        {"attention": {"t_f": 0.3, "t_b": 0.3, "t_w": [0, 0, 0]}},
        "",
    ),
    "LENGTHS: model: expected a preset's name, or a model's configuration, got 5": (
        {"attention": None, "model": 5},
        "",
    ),
    "LENGTHS: model: expected a config.json, its folder, or a preset's name": (
        {"attention": None, "model": "lama-3-8b"},
        "",
    ),
    "LENGTHS: /config.json: no such file": ({"attention": None, "model": "/"}, ""),
    "LENGTHS: attention: expected a number, or one a stage (2), got 3 numbers": (
        {"attention": [0.1, 0.1, 0.1]},
        "",
    ),
    'LENGTHS: format: expected "pipeloom.lengths", got "pipeloom.profile"': (
        {"format": "pipeloom.profile"},
        "",
    ),
    "--placement: expected one placement for pack, got auto": ({}, "--placement auto"),
    "--placement: expected one copy of each stage for pack, got bidirectional": (
        {},
        "--placement bidirectional",
    ),
}


@pytest.mark.parametrize("expected", BAD)
def test_bad_input_is_one_line(expected: str, tmp_path: Path, pipeloom: Command) -> None:
    changes, more = BAD[expected]
    lengths, profile = tmp_path / "l.json", tmp_path / "p.json"
    lengths.write_text(json.dumps(lengths_document(**changes)))
    profile.write_text(json.dumps(profile_document()))
    done = pipeloom("pack", str(lengths), "--profile", str(profile), "-m", "4", *more.split())
    assert done.code == 2
    (line,) = done.err.splitlines()
    assert line.startswith(f"pipeloom: {expected.replace('LENGTHS', str(lengths))}")


def test_the_profile_that_is_read_is_not_written_over(tmp_path: Path, pipeloom: Command) -> None:
    lengths, profile = tmp_path / "l.json", tmp_path / "profile.json"
    lengths.write_text(json.dumps(lengths_document()))
    profile.write_text(json.dumps(profile_document()))
    args = ("--profile", str(profile), "-m", "4", "-o", str(tmp_path))
    done = pipeloom("pack", str(lengths), *args)
    assert done.code == 2
    expected = f"--output: expected a folder without --profile's file, got {profile}"
    assert done.err == f"pipeloom: {expected}\n"
    assert json.loads(profile.read_text()) == profile_document()


def test_a_profile_that_has_what_it_was_packed_of_is_refused() -> None:
    """Files of 0.1.0."""
    document = profile_document() | {"packing": {"lengths": [3]}}
    with pytest.raises(library.InputError, match=r"^p: packing: was removed in 0\.2\.0; a profile"):
        parse_profile(document, "p")


def test_a_start_of_another_size_is_refused(tmp_path: Path, pipeloom: Command) -> None:
    profile, start = tmp_path / "p.json", tmp_path / "s.json"
    profile.write_text(json.dumps(profile_document()))
    assert pipeloom("build", "1f1b", str(profile), "-m", "3", "-o", str(start)).code == 0
    done = pipeloom("optimize", str(profile), "-m", "4", "--start", str(start))
    assert done.code == 2
    said = f"--start: {start}: expected 2 stages and 4 microbatches, got 2 stages and 3 microbatch"
    assert said in done.err


def test_nothing_is_told_of_searches_that_begin_once_it_is_stopped() -> None:
    told: list[object] = []
    found = library.pack(
        *(lengths_document(), profile_document(), 4), progress=told.append, should_stop=lambda: True
    )
    assert len(found.schedules) == 1
    assert [event for event in told if isinstance(event, Searching | Searched)] == []


def test_wrong_input_leaves_no_folder(pipeloom: Command, tmp_path: Path) -> None:
    lengths, folder = written(tmp_path / "lengths.json", lengths_document()), tmp_path / "a" / "b"
    done = pipeloom("pack", lengths, "--profile", tmp_path / "none.json", "-m", 4, "-o", folder)
    assert (done.code, "no such file" in done.err) == (2, True)
    assert not folder.parent.exists()
