"""The functions of the library: each gives what its command prints, for files and for objects."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import pipeloom
from pipeloom.cli.main import main
from pipeloom.ir.errors import InfeasibleError, InputError
from pipeloom.ir.formats import dump_program, dump_schedule, load_schedule, parse_profile
from pipeloom.ir.formats.json_reader import read_json
from pipeloom.ir.formats.profile_json import parse_layers
from pipeloom.ir.model.links import Link, Links
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Status
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.planner.compile import program_facts
from pipeloom.planner.solving.progress import Event, Note, Searched, Searching, labelled
from tests.support.command_line import layers_document, profile_document, written

LIMITED: dict[str, Any] = {"work_limit": 0.1, "solver": "heuristic"}
TYPED = ["--work-limit", "0.1", "--solver", "heuristic", "-q"]

Json = Callable[..., dict[str, Any]]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Json:
    """What a command prints with ``--json``, without the seconds that a solve took."""

    def call(*words: object) -> dict[str, Any]:
        capsys.readouterr()
        main([*map(str, words), "--json"])
        return plain(json.loads(capsys.readouterr().out))

    return call


def plain(answer: dict[str, Any]) -> dict[str, Any]:
    """``answer`` as JSON has it, without what no command prints twice: the seconds that searches
    took."""
    found: dict[str, Any] = json.loads(json.dumps(answer))
    found.pop("solve_seconds", None)
    for placement in found.get("choice", {}).get("placements", ()):
        placement.pop("seconds", None)
    return found


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return written(tmp_path / "profile.json", profile_document())


@pytest.fixture
def layers(tmp_path: Path) -> Path:
    return written(tmp_path / "layers.json", layers_document())


@pytest.fixture
def schedule(tmp_path: Path, profile: Path) -> Path:
    return written(tmp_path / "schedule.json", dump_schedule(pipeloom.build("zb-h1", profile, 3)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, []),
        ({"objective": "makespan", "memory_limit": 1.5}, ["--objective", "makespan"]),
        ({"placement": "v"}, ["--placement", "v"]),
        ({"placement": "linear"}, ["--placement", "linear"]),
        ({"placement": "auto", "copies": 1}, ["--placement", "auto", "--copies", "1"]),
        ({"passing": "weights"}, ["--passing", "weights"]),
        ({"passing": "auto"}, ["--passing", "auto"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_optimize_gives_what_its_command_prints(
    profile: Path, printed: Json, options: dict[str, Any], words: list[str]
) -> None:
    if "memory_limit" in options:
        words = [*words, "--memory-limit", options["memory_limit"]]
    if options.get("passing", "activations") != "activations":
        limited, typed = {"work_limit": 0.1}, ["--work-limit", "0.1", "-q"]
    else:
        limited, typed = LIMITED, TYPED
    answer = pipeloom.optimize(profile, 3, **limited, **options)
    expected = printed("optimize", profile, "-m", 3, *typed, *words)
    assert {"output": None} | plain(answer.to_dict()) == expected
    assert verify_schedule(dump_schedule(answer.schedule)) == []
    assert answer.lower_bound <= answer.cost * (1 + 1e-9)
    (chosen,) = [each for each in answer.candidates if each.reason is None]
    assert all(each.reason for each in answer.candidates if each is not chosen)
    assert not answer.stopped


def test_the_answer_for_layers_is_the_commands(layers: Path, printed: Json) -> None:
    options = {"placement": "auto", "min_layers": 2}
    answer = pipeloom.optimize(layers, 4, **LIMITED, **options)
    words = ["--placement", "auto", "--min-layers", 2]
    expected = printed("optimize", layers, "-m", 4, *TYPED, *words)
    assert {"output": None} | plain(answer.to_dict()) == expected
    assert answer.lower_bound == expected["partition"]["lower_bound"]
    assert answer.gap == pytest.approx(expected["partition"]["gap"])
    assert (answer.status is Status.OPTIMAL) is (answer.gap <= 1e-6)
    assert str(answer.status) == answer.status.value
    assert "of all cuts" in str(answer)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("profile.json", {}, []),
        ("profile.json", {"placement": "auto"}, ["--placement", "auto"]),
        ("layers.json", {}, []),
    ],
)
def test_what_does_not_fit_is_raised_as_it_is_printed(
    profile: Path, layers: Path, printed: Json, name: str, options: Any, words: list[str]
) -> None:
    path = profile.parent / name
    with pytest.raises(InfeasibleError) as caught:
        pipeloom.optimize(path, 3, memory_limit=0.01, **LIMITED, **options)
    words = [*TYPED, *words, "--memory-limit", "0.01"]
    expected = printed("optimize", path, "-m", 3, *words)
    assert plain(caught.value.to_dict()) == expected


def test_profiles_may_be_files_or_objects(profile: Path, layers: Path) -> None:
    by_stages, by_layers = (read_json(str(path)) for path in (profile, layers))
    objects = parse_profile(by_stages, "p"), parse_layers(by_layers, "l")
    for path, loaded in zip((profile, layers), objects, strict=True):
        given = (str(path), json.loads(path.read_text()), loaded)
        expected = plain(pipeloom.optimize(path, 3, **LIMITED).to_dict())
        for each in given:
            assert plain(pipeloom.optimize(each, 3, **LIMITED).to_dict()) == expected
    placed = pipeloom.optimize(profile, 3, placement=[0, 1, 1, 0], **LIMITED)
    v = pipeloom.optimize(profile, 3, placement="v", **LIMITED)
    assert placed.to_dict()["period"] == v.to_dict()["period"]


def test_an_explanation_is_the_commands(profile: Path, printed: Json) -> None:
    words = ["--memory-limit", 1, *TYPED, "--placement", "linear", "--explain"]
    expected = printed("optimize", profile, "-m", 3, *words)["explanation"]
    answer = pipeloom.optimize(profile, 3, memory_limit=1, placement="linear", **LIMITED)
    found = answer.explain()
    assert plain(found.to_dict()).keys() == expected.keys()
    for key in ("bound", "losses", "enough_memory", "step"):
        assert plain(found.to_dict())[key] == expected[key]
    again = pipeloom.explain(dump_schedule(answer.schedule), seconds=0.0).to_dict()
    assert plain(again)["bound"] == expected["bound"]
    assert str(found).startswith("why no schedule is below")


def test_build_gives_the_schedule_that_its_command_writes(
    profile: Path, layers: Path, tmp_path: Path
) -> None:
    for path, options, words in (
        (profile, {"memory_limit": 2.0}, ["--memory-limit", 2]),
        (layers, {"partition": "even"}, ["--partition", "even"]),
    ):
        target = tmp_path / "built.json"
        main(list(map(str, ["build", "zb-h1", path, "-m", 3, *words, "-o", target])))
        built = pipeloom.build("zb-h1", path, 3, **options)
        assert plain(dump_schedule(built)) == json.loads(target.read_text())


def test_verify_gives_what_its_command_prints(schedule: Path, printed: Json) -> None:
    found = pipeloom.verify(schedule)
    assert {"file": str(schedule)} | found.to_dict() == printed("verify", schedule)
    document = json.loads(schedule.read_text())
    document["order"][0].pop()
    wrong = pipeloom.verify(document)
    assert not wrong.ok
    assert str(wrong).startswith("document: ")
    assert pipeloom.verify(load_schedule(str(schedule))).ok
    assert pipeloom.verify(pipeloom.compile(schedule)).kind == "program"


def test_compile_gives_the_program_that_its_command_writes(
    schedule: Path, printed: Json, tmp_path: Path
) -> None:
    target = tmp_path / "program.json"
    expected = printed("compile", schedule, "--tied", "0,1", "-o", target)
    program = pipeloom.compile(load_schedule(str(schedule)), tied=[[0, 1]])
    assert {"output": str(target)} | program_facts(program) == expected
    assert plain(dump_program(program)) == json.loads(target.read_text())


def test_show_draws_what_its_command_draws(schedule: Path, printed: Json, tmp_path: Path) -> None:
    target = tmp_path / "a.svg"
    expected = printed("show", schedule, "-o", target)
    picture = pipeloom.show(schedule, output=tmp_path / "b.svg")
    assert {"output": str(target)} | plain(picture.to_dict()) == expected
    assert (tmp_path / "b.svg").read_bytes() == target.read_bytes()
    assert str(pipeloom.show(pipeloom.compile(schedule))).count("rank ") >= 2


def test_export_and_import_are_the_commands(
    profile: Path, schedule: Path, printed: Json, tmp_path: Path
) -> None:
    table = tmp_path / "table.csv"
    expected = printed("export", schedule, "--to", "torch-csv", "-o", table)
    exported = pipeloom.export(schedule, "torch-csv")
    assert {"output": str(table)} | exported.to_dict() == expected
    assert str(exported) == table.read_text()
    back = pipeloom.import_(table, "torch-csv", profile)
    assert [row.tolist() for row in back.order] == [
        row.tolist() for row in load_schedule(str(schedule)).order
    ]


def test_progress_is_told_notes_and_searches(tmp_path: Path) -> None:
    events: list[Event] = []
    document = profile_document() | {"memory_limits": 1}
    cache = str(tmp_path / "cache")
    for _ in range(2):
        told = labelled("one", events.append)
        pipeloom.optimize(document, 3, placement="linear", cache=cache, progress=told)
    assert {type(event) for event in events} == {Note, Searching, Searched}
    lines = list(map(str, events))
    assert "memory_limits: unknown key" in lines[0]
    assert lines[-1].startswith("one: taken from the cache")
    assert all(line.startswith("one: ") for line in lines)


def test_a_search_that_is_told_to_stop_has_an_answer(profile: Path) -> None:
    answer = pipeloom.optimize(profile, 3, should_stop=lambda: True)
    assert answer.stopped
    assert verify_schedule(dump_schedule(answer.schedule)) == []


def test_a_problem_is_for_solve() -> None:
    problem = pipeloom.Problem.linear(Profile((StageProfile(1, 1, 1),), 1), 2, 9.0)
    assert pipeloom.solve(problem).report is not None


def test_weights_are_sent_within_device_memory_whatever_the_microbatches() -> None:
    """Owners are then one a microbatch, of which there are no multiple of the stages."""
    stage = StageProfile(1.0, 1.0, 1.0, 1.0, 0.5, 1e3, 1e3, 1e3, optimizer_bytes=1e3)
    memory = (1e6,) * 4
    links = Links(Link(0.01, 1.0))
    profile = Profile((stage,) * 4, 4, links=links, device_memory=memory)
    for microbatches in (3, 9):
        answer = pipeloom.optimize(profile, microbatches, passing="weights", work_limit=0.5)
        assert answer.schedule.problem.microbatches == microbatches


FINE = StageProfile(1.0, 1.0, 1.0, 1.0, 0.5)


@pytest.mark.parametrize(
    ("profile", "key"),
    [
        (Profile((replace(FINE, t_f=-1.0), FINE), 2), "t_f"),
        (Profile((replace(FINE, t_b=float("nan")), FINE), 2), "t_b"),
        (Profile((replace(FINE, m_w=5.0), FINE), 2), "m_w"),
        (Profile((FINE, FINE), 2, t_comm=-5.0), "t_comm"),
        (Profile((FINE, FINE), 2, tied=((0, 9),)), "tied"),
        (Profile((FINE, FINE), 2, memory_limit=(2.0,)), "memory_limit"),
        (Profile((FINE, FINE), 2, memory_limit=(2.0, float("nan"))), "memory_limit"),
        (Profile((), 2), "stages"),
    ],
)
def test_profiles_that_are_objects_are_held_to_the_rules_of_files(
    profile: Profile, key: str
) -> None:
    for call in (pipeloom.optimize, partial(pipeloom.build, "1f1b")):
        with pytest.raises(InputError, match=rf"profile: .*{key}"):
            call(profile, 4)


def test_an_answer_is_taken_for_its_schedule() -> None:
    answer = pipeloom.optimize(Profile((FINE, FINE), 2), 3, work_limit=0.5)
    assert pipeloom.verify(answer).ok
    assert dump_schedule(pipeloom.compile(answer).schedule) == dump_schedule(answer.schedule)
    assert pipeloom.explain(answer).to_dict() == answer.explain().to_dict()


def test_a_misspelt_key_is_warned_of_where_nobody_listens(tmp_path: Path) -> None:
    path = written(tmp_path / "p.json", profile_document() | {"memory_limits": 6})
    with pytest.warns(UserWarning, match="memory_limits"):
        pipeloom.build("1f1b", path, 4)


def test_limits_may_be_written_as_on_the_command_line() -> None:
    stage = pipeloom.StageProfile(1.0, 1.0, 1.0, m_b=5e9, m_w=1e9)
    profile, quick = Profile((stage, stage), 2), {"work_limit": 0.1}
    ten = (10e9, 10e9)
    assert pipeloom.optimize(profile, 4, memory_limit="10GB", **quick).document["memory_limit"] == [
        *ten
    ]
    assert pipeloom.build("1f1b", profile, 4, memory_limit="10 G").problem.memory_limit == ten
    table = pipeloom.compare(profile, 4, memory_limit="10e9", no_optimizer=True)
    assert {row.schedule.problem.memory_limit for row in table.built} == {ten}
    swept = pipeloom.sweep(profile, 4, ["none", "10GB", 20e9], **quick)
    assert [limit.words for limit in swept.limits] == ["10GB", "20000000000", "none"]
    slow = [pipeloom.optimize(profile, 4, slow=x, **quick).cost for x in ({1: 2.0}, "1:2")]
    assert slow[0] == slow[1]


def test_compare_has_a_row_for_a_profile_that_does_not_fit() -> None:
    table = pipeloom.compare(Profile((FINE,) * 3, 2), 4, placement="v", work_limit=0.1)
    row = table.rows[-1]
    assert (row.name, row.status) == ("optimize", "unsupported")
    assert "expected 2 (to be cut) or 4 for the placement v" in (row.why_not or "")


def test_costs_count_what_is_left_of_averaging(profile: Path) -> None:
    """One placement, placements and schemes alike; the report has the period without it."""
    replicas = {"size": 4, "gigabytes_per_second": 1e-6}
    sizes = {"weight_bytes": 1000.0, "grad_bytes": 1000.0}
    document = profile_document(data_parallel=replicas)
    document["stages"] = [stage | sizes for stage in document["stages"]]
    for options in ({}, {"placement": "auto"}, {"passing": "auto"}):
        answer = pipeloom.optimize(document, 3, **LIMITED | options)
        timing = answer.schedule.known_timing
        assert answer.cost == timing.iteration_time(answer.schedule.problem.objective)
        assert answer.cost > timing.period
