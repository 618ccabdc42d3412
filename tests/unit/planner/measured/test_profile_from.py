"""Profiles from measured ops: the content of each kind of file, omissions, and refused input."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeloom import (
    InputError,
    Profile,
    StageProfile,
    build_family,
    compile_schedule,
    dump_profile,
    dump_program,
    dump_schedule,
    profile_from,
)
from pipeloom.ir import Link, Links, Measurement, parse_profile


def event(name: str, start: float, end: float, cat: str = "user_annotation", tid: int = 1) -> Any:
    return {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": end - start, "tid": tid}


def trace(path: Path, events: Sequence[Any], rank: int | None = None) -> Path:
    about = {} if rank is None else {"distributedInfo": {"rank": rank}}
    document = json.dumps({"traceEvents": list(events)} | about).encode()
    path.write_bytes(gzip.compress(document) if path.suffix == ".gz" else document)
    return path


def two_stages(folder: Path) -> Path:
    """A trace of two stages with an F of 1 ms and a BW of 8 ms each."""
    names = {"0F0": 1_000, "0BW0": 8_000, "1F0": 1_000, "1BW0": 8_000}
    return trace(folder / "a.json", [event(name, 0, took) for name, took in names.items()])


def times(found: Measurement) -> list[tuple[float, float, float]]:
    return [(s.t_f, s.t_b, s.t_w) for s in found.profile.stages]


def told(*files: Path, **options: Any) -> tuple[Measurement, list[str]]:
    notes: list[str] = []
    found = profile_from(list(files), progress=lambda note: notes.append(str(note)), **options)
    document = dump_profile(found.profile)
    assert parse_profile(document, "profile.json") == found.profile
    return found, notes


def test_a_run_is_read_by_the_names_of_its_ops_and_its_first_step_is_warm_up(
    tmp_path: Path,
) -> None:
    """Two ranks, two steps; events with other names, messages and evaluations are ignored."""
    for rank, scale in enumerate((1, 2)):
        ops: list[Any] = [event("send x1.0 to 1", 0, 9e9), event("aten::mm", 0, 5, "cpu_op")]
        for step, slow in enumerate((10, 1)):
            at = 1e6 * step
            for kind, took in (("F", 1000), ("B", 2000), ("W", 500)):
                ops.append(event(f"{rank}{kind}0", at, at + took * scale * slow))
                at += 1e5
            ops += [event(f"eval {rank}F0", at + n, at + n + 1) for n in range(5)]
        trace(tmp_path / f"{rank}.json.gz", ops, rank)
    found, notes = told(tmp_path)
    assert times(found) == [(1.0, 2.0, 0.5), (2.0, 4.0, 1.0)]
    assert found.profile.ranks == 2
    assert any("1 of 2 steps left out as warm-up" in note for note in notes)
    assert not any("one op" in note for note in notes)
    assert times(told(tmp_path, warmup=0)[0])[0] == (5.5, 11.0, 2.75)
    with pytest.raises(InputError, match=r"^files: rank 1's file is missing: messages went to its"):
        profile_from(tmp_path / "0.json.gz")
    with pytest.raises(InputError, match=r"^ranks: expected 1 to 2, of which files tell, got 3$"):
        profile_from(tmp_path, ranks=3)


def test_torchs_ranges_begin_at_the_first_operator_that_computes(tmp_path: Path) -> None:
    """Before that, they wait for a message; torch's I is B, and its B is BW."""
    ops = [
        *(event("PP:0F0", 0, 10_000), event("c10d::recv_", 10, 20, "cpu_op")),
        *(event("aten::mm", 7_000, 9_000, "cpu_op"), event("aten::add", 7_500, 7_600, "cpu_op")),
        *(event("c10d::send", 9_500, 9_900, "cpu_op"), event("PP:0I0", 20_000, 30_000)),
        event("AddmmBackward0", 22_000, 25_000, "cpu_op", tid=2),
        *(event("PP:0W0", 30_000, 40_000), event("PP:0B1", 40_000, 50_000)),
        event("AddmmBackward0", 41_000, 49_000, "cpu_op"),
        event("PP:(0F1;0B2)OVERLAP_F_B", 60_000, 70_000),
    ]
    found, notes = told(trace(tmp_path / "a.json", ops))
    assert times(found) == [(2.0, 3.0, 0.0)]
    assert found.profile.stages[0].t_bw == 8.0
    assert any("1 range of a forward and a backward at once" in note for note in notes)
    assert any("there is one step" in note for note in notes)


def test_what_files_do_not_tell_is_taken_from_another_profile(tmp_path: Path) -> None:
    path = two_stages(tmp_path)
    stage = StageProfile(5.0, 1.0, 3.0, 7e9, 6e9, 1e6, 2e9, 2e9, 4e9, t_r=5.0, m_r=1e6, t_fb=9.0)
    like = Profile((stage,) * 2, ranks=2, links=Links(Link(0.1, 25.0)), name="like")
    found, notes = told(path, like=like)
    assert times(found) == [(1.0, 2.0, 6.0)] * 2
    new = found.profile.stages[0]
    assert (new.m_b, new.m_w, new.weight_bytes, new.t_r, new.t_fb) == (7e9, 6e9, 2e9, 5.0, None)
    assert (found.profile.links, found.profile.name) == (like.links, "like")
    assert not any("memory" in note or "links" in note for note in notes)
    other, _ = told(path, memory_limit=9e9)
    assert times(other) == [(1.0, 4.0, 4.0)] * 2
    assert other.profile.memory_limit == (9e9,)


def test_a_schedule_and_a_program_are_asked_by_their_profile(tmp_path: Path) -> None:
    path = two_stages(tmp_path)
    profile = Profile((StageProfile(1.0, 1.0, 3.0, 7e9, 6e9),) * 2, ranks=2, t_comm=0.25)
    schedule = build_family("1f1b", profile, 2)
    for like in (schedule, dump_schedule(schedule), dump_program(compile_schedule(schedule))):
        found, _ = told(path, like=like)
        assert (found.profile.t_comm, found.profile.stages[1].m_b) == (0.25, 7e9)
