"""The answers of a running server."""

from __future__ import annotations

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import pipeloom
from pipeloom.ir import parse_profile
from tests.support.served import LONG, PROFILE, QUICK, Served

PAGE = Path(__file__).parents[2] / "report/page"
LAYERS: dict[str, Any] = {
    "format": "pipeloom.profile",
    "version": 1,
    "name": "layers",
    "ranks": 2,
    "t_comm": 0.1,
    "layers": [
        {"name": name, "kind": kind, "t_f": 1, "t_b": 1, "t_w": 1, "m_b": 1, "m_w": 0.5}
        for name, kind in [
            ("tok_embeddings", "embedding"),
            *((f"layers.{i}", "block") for i in range(4)),
            ("output", "head"),
        ]
    ],
}
TIMES = {"t_f": -1, "t_b": "x", "t_w": None, "m_b": 1, "m_w": 2}


def test_the_page_is_small_and_loads_nothing_else(server: Served) -> None:
    texts = [path.read_text() for path in PAGE.iterdir()]
    assert sum(len(text.encode()) for text in texts) <= 45 * 1024
    assert max(len(line) for text in texts for line in text.splitlines()) <= 100
    answer = server.get("/")
    assert answer.status == 200
    assert b"https://" not in answer.data
    assert answer.headers["content-type"] == "text/html; charset=utf-8"


def test_a_solve_has_the_families_and_the_best_schedule_of_each_placement(server: Served) -> None:
    asked = {"microbatches": 6, "memory_limit": 4, "placements": ["linear", "v"], "time_limit": 1}
    solve, rows = server.solved(**asked)
    assert [name for name in rows if name.startswith("optimize")] == [
        "optimize linear",
        "optimize v",
    ]
    assert rows["gpipe"]["reason"] == "infeasible: needs 6 on rank 0"
    assert rows["zb-h1"]["fits"]
    answer = server.get(f"/api/solves/{solve}/rows/{rows['zb-h1']['row']}").json
    built = pipeloom.build("zb-h1", PROFILE, 6, memory_limit=4)
    assert answer["schedule"] == pipeloom.dump_schedule(built)
    assert pipeloom.verify(answer["schedule"]).ok
    assert answer["explanation"]["words"] == str(pipeloom.explain(built))
    assert answer["command"].splitlines()[0] == (
        "pipeloom build zb-h1 profile.json -m 6 --memory-limit 4 --objective period "
        "-o schedule.json"
    )


def test_each_op_starts_when_what_it_waited_for_has_arrived(server: Served) -> None:
    solve, rows = server.solved(**QUICK)
    answer = server.get(f"/api/solves/{solve}/rows/{rows['1f1b']['row']}").json
    ops = [op for rank in answer["schedule"]["order"] for op in rank]
    waits = answer["waits"]
    assert waits["origin"].count(-1) == 1  # the first op of rank 0
    for op, origin, delay in zip(ops, waits["origin"], waits["delay"], strict=True):
        arrival = ops[origin]["end"] + delay if origin >= 0 else 0.0
        assert op["start"] == pytest.approx(arrival)
    peaks = [max(held for _, held in curve) for curve in answer["memory"]]
    assert peaks == pytest.approx(answer["schedule"]["report"]["peak_memory"])


def test_events_show_cost_and_bound_and_a_solve_can_be_stopped(server: Served) -> None:
    solve = server.begin(**LONG)
    events = server.events(solve)
    found = next(event for event in events if event["kind"] == "progress" and event["cost"])
    assert found["name"] == "wave:2"
    assert 0 < found["bound"] <= found["cost"]
    last = server.stop(solve)
    assert (last["kind"], last["state"], last["faults"]) == ("end", "Stopped", [])


def test_a_longer_search_starts_from_the_schedules_found(server: Served) -> None:
    asked = {"microbatches": 8, "placements": ["v"], "time_limit": 0.3}
    first, rows = server.solved(**asked)
    _, more = server.solved(**asked, start=first)
    assert more["optimize v"]["cost"] <= rows["optimize v"]["cost"]
    assert more.keys() == rows.keys()


CHANGES: list[dict[str, Any]] = [
    {"microbatches": 7},
    {"memory_limit": 9},
    {"objective": "makespan"},
    {"profile": PROFILE | {"t_comm": 1}},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
def test_a_search_starts_only_from_the_same_problem(server: Served, change: dict[str, Any]) -> None:
    first, _ = server.solved(**QUICK)
    answer = server.post("/api/solves", {"profile": PROFILE, "start": first} | QUICK | change)
    assert answer.status == 422
    assert answer.faults == [("start", "expected a solve of the same problem")]


def test_a_longer_search_keeps_a_schedule_that_it_cannot_start_from(server: Served) -> None:
    asked = QUICK | {"placements": ["bidirectional"]}
    first, rows = server.solved(**asked)
    _, more = server.solved(**asked, start=first)
    assert more["optimize bidirectional"]["cost"] <= rows["optimize bidirectional"]["cost"]


def test_a_placement_that_is_refused_does_not_end_the_solve(server: Served) -> None:
    asked = QUICK | {"placements": ["v", "linear"], "profile": PROFILE | {"max_stages": 4}}
    _, rows = server.solved(**asked)
    assert "max_stages: expected at least 8" in rows["optimize v"]["reason"]
    assert rows["optimize linear"]["built"]


def test_rows_and_profiles_have_notes(server: Served) -> None:
    profile = PROFILE | {"device_memory": 2.5, "t_com": 1}
    events = list(server.events(server.begin(**QUICK | {"placements": ["v"], "profile": profile})))
    assert any("t_com" in event["text"] for event in events if event["kind"] == "note")
    rows = {event["name"]: event for event in events if event["kind"] == "row"}
    notes = {name: row["notes"] for name, row in rows.items()}
    for name in ("optimize v", "zb-v"):
        assert any(note.startswith("assumed: each stage is cut into 2") for note in notes[name])
    assert any(each.startswith("does not fit: needs 6 on rank 0") for each in notes["gpipe"])
    assert not rows["gpipe"]["fits"]


def test_a_sweep_has_a_picture_and_a_schedule_for_each_limit(server: Served) -> None:
    limits = [2, 3, 4]
    solve = server.begin(memory_limits=limits, microbatches=6, time_limit=0.6)
    found = next(event for event in server.events(solve) if event["kind"] == "frontier")
    assert found["picture"].startswith("<svg")
    rates = [point["bubble_rate"] for point in found["points"]]
    assert rates == sorted(rates, reverse=True)
    for limit, point in zip(limits, found["points"], strict=True):
        answer = server.get(f"/api/solves/{solve}/rows/{point['row']}").json
        assert max(answer["schedule"]["report"]["peak_memory"]) <= limit
        assert f"--memory-limit {limit} " in answer["command"]


def test_files_are_those_of_the_library(server: Served) -> None:
    asked = {"microbatches": 4, "placements": ["linear"], "time_limit": 0.2}
    solve, rows = server.solved(**asked | {"profile": LAYERS})
    place = f"/api/solves/{solve}/rows/{rows['1f1b']['row']}/"
    inside = re.search(rb'id="inside">(.*?)</script>', server.get("/").data)
    assert inside
    files = {name: server.get(place + name) for name in json.loads(inside[1])["downloads"]}
    assert {name: answer.status for name, answer in files.items()} == dict.fromkeys(files, 200)
    assert files["profile.json"].json == LAYERS
    assert pipeloom.verify(files["schedule.json"].json).ok
    assert pipeloom.verify(files["program.json"].json).ok
    assert files["schedule.svg"].data.startswith(b"<svg")
    exported = pipeloom.export(files["schedule.json"].json, "megatron-layout")
    assert files["megatron.txt"].data.decode() == exported.text
    attachment = 'attachment; filename="torch.csv"'
    assert files["torch.csv"].headers["content-disposition"] == attachment


def test_a_format_that_cannot_express_a_schedule_is_a_fault(server: Served) -> None:
    solve, rows = server.solved(**QUICK)
    answer = server.get(f"/api/solves/{solve}/rows/{rows['1f1b']['row']}/megatron.txt")
    assert answer.status == 422
    assert answer.faults


def test_a_preset_and_traces_give_profiles(server: Served) -> None:
    preset = {"model": "llama-3-8b", "cluster": "H100", "pp": 4, "microbatches": 8}
    profile = server.post("/api/profile", preset).json["profile"]
    stages = json.loads(pipeloom.export(pipeloom.build("1f1b", profile, 8), "torchtitan").text)
    assert len(stages) == 4
    assert stages[-1][-2:] == ["norm", "output"]
    document = pipeloom.dump_schedule(pipeloom.build("1f1b", PROFILE, 3))
    for rank in document["order"]:
        for op in rank:
            op["start"], op["end"] = 2 * op["start"], 2 * op["end"]
    answer = server.post("/api/profile", {"traces": [json.dumps(document)]})
    stage = parse_profile(answer.json["profile"], "traces").stages[0]
    assert (stage.t_f, stage.m_b, stage.m_w) == (20, 1, 0.5)  # memory is that of the schedule
    assert any(note.startswith("note: there is one step") for note in answer.json["notes"])


FAULTS: dict[str, tuple[str, dict[str, Any]]] = {
    "stages[0]: t_f": ("expected a finite number >= 0, got -1", {"stages": [TIMES]}),
    "ranks": ("expected at most 64 on this page, got 65", {"ranks": 65, "num_stages": 65}),
    "num_stages": ("expected at most 512 on this page, got 65536", {"num_stages": 65536}),
    "microbatches": (
        "expected at most 1024 on this page, got 1025",
        {"stages": [{"t_f": [1] * 1025, "t_b": 1, "t_w": 1, "m_b": 1, "m_w": 1}]},
    ),
}


def test_faults_of_all_fields_come_together(server: Served) -> None:
    wrong = {"microbatches": 0, "memory_limit": "8Gb", "time_limit": 0, "x": 1}
    answer = server.post("/api/solves", {"profile": PROFILE | {"stages": [TIMES]}} | wrong)
    keys = {key for key, _ in answer.faults}
    assert keys >= {"stages[0]: t_f", "stages[0]: t_b", *wrong}


REQUESTS: dict[str, tuple[object, str]] = {
    "profile": ("/etc/passwd", 'expected an object (a profile\'s JSON), got "/etc/passwd"'),
    "microbatches": (0, "expected a whole number from 1 to 1024, got 0"),
    "memory_limit": ("8Gb", "expected a finite number >= 0, such as 8, 20e9"),
    "objective": ([], "expected period or makespan, got []"),
    "placements": (["../x.json"], "expected any of linear, interleaved:2"),
    "time_limit": (1e9, "expected seconds from 0.05 to 120, got 1000000000.0"),
    "memory_limits": (["x"], "expected a finite number >= 0"),
    "start": ("../../x", "not kept any more: solve again"),
    "output": ("/tmp/x", "unknown; expected one of profile, microbatches"),
}


@pytest.mark.parametrize("key", FAULTS)
def test_faults_of_the_profile_have_their_key(server: Served, key: str) -> None:
    words, change = FAULTS[key]
    answer = server.post("/api/solves", {"profile": PROFILE | change, "microbatches": 4})
    assert answer.status == 422
    assert (key, words) in answer.faults


@pytest.mark.parametrize("key", REQUESTS)
def test_each_field_has_one_readable_fault(server: Served, key: str) -> None:
    value, words = REQUESTS[key]
    answer = server.post("/api/solves", {"profile": PROFILE} | QUICK | {key: value})
    if answer.status == 202:  # found by the solve
        last = list(server.events(answer.json["solve"]))[-1]
        found = [(fault["key"], fault["words"]) for fault in last["faults"]]
    else:
        assert answer.status in (404, 422)
        found = answer.faults
    ((named, told),) = found
    assert named == {"start": "solve"}.get(key, key)
    assert told.startswith(words)


@pytest.mark.parametrize(
    ("body", "key"),
    [
        ({"model": "/etc/passwd", "cluster": "H100"}, "model"),
        ({"model": "config.json", "cluster": "H100"}, "model"),
        ({"model": "llama-3-8b", "cluster": "../cluster.json"}, "cluster"),
        ({"model": "llama-3-8b", "cluster": "H100", "tp": 7}, "tp"),
        (
            {"model": "llama-3-8b", "cluster": "H100", "precision": "../../etc/passwd/x"},
            "precision",
        ),
        ({"traces": ["/etc/passwd"]}, "traces"),
        ({"traces": []}, "traces"),
        ({"traces": ["{}"], "memory": ["/etc/passwd"]}, "memory"),
    ],
)
def test_names_of_files_are_no_presets(server: Served, body: dict[str, Any], key: str) -> None:
    answer = server.post("/api/profile", body)
    assert answer.status == 422
    assert {named for named, _ in answer.faults} == {key}
    assert b"root:" not in answer.data
    assert b"/tmp/" not in answer.data


@pytest.mark.parametrize(
    "path",
    ["/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/page.js", "/web/app.py", "//etc/passwd",
     "/api/solves/..%2f..%2fetc/events", "/api/solves/x/rows/0/..%2f..%2fpasswd",
     "/api/solves/x/rows/-1", "/api/solves/%00/events"],
)  # fmt: skip
def test_paths_lead_to_no_files(server: Served, path: str) -> None:
    answer = server.get(path)
    assert answer.status == 404
    assert answer.json["faults"]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"1", b"\xff\xfe", b"[" * 100_000, b'{"profile": NaN}', b"null",
     b'{"profile": {}, "profile": {}}', b'{"microbatches": 1e999}', b'{"\x00": 1}',
     b'{"profile": "\\ud800"}'],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/api/solves", "/api/profile"])
def test_malformed_bodies_are_faults(server: Served, path: str, body: bytes) -> None:
    answer = server.post(path, body)
    assert answer.status == 422
    assert answer.json["faults"]
    assert b"Traceback" not in answer.data


def test_a_third_solve_is_refused_until_one_is_stopped(server: Served) -> None:
    running = [server.begin(**LONG) for _ in range(2)]
    answer = server.post("/api/solves", {"profile": PROFILE} | LONG)
    assert answer.status == 429
    assert answer.faults == [("solves", "expected at most 2 at once: stop one first")]
    assert [server.stop(solve)["state"] for solve in running] == ["Stopped", "Stopped"]
    server.solved(**QUICK)


def test_twenty_clients_at_once(server: Served) -> None:
    def client(number: int) -> int:
        asked = QUICK | {"profile": PROFILE, "microbatches": 4 + number % 3, "time_limit": 0.05}
        while (answer := server.post("/api/solves", asked)).status == 429:
            assert server.get("/").status == 200
            time.sleep(0.1)
        events = list(server.events(answer.json["solve"]))
        row = next(event["row"] for event in events if event.get("name") == "1f1b")
        return server.get(f"/api/solves/{answer.json['solve']}/rows/{row}").status

    with ThreadPoolExecutor(20) as pool:
        assert set(pool.map(client, range(20))) <= {200, 404}  # 404: dropped for later ones


def test_rows_that_are_not_there(server: Served) -> None:
    solve, rows = server.solved(**QUICK | {"memory_limit": 2})
    refused = next(row["row"] for row in rows.values() if not row["built"])
    for path in ("rows/99", f"rows/{refused}", f"rows/{rows['optimize linear']['row']}/x.json"):
        assert server.get(f"/api/solves/{solve}/{path}").status == 404
