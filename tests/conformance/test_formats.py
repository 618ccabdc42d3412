"""Every kind of document reads back as it was written; what is wrong in one is one line.

``refusals.txt`` pins what is said of wrong values. ``tests/fuzz`` has sound documents of each kind.
"""

from __future__ import annotations

import copy
import io
import json
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipeloom import (
    InputError,
    Objective,
    Profile,
    StageProfile,
    build_family,
    compile_schedule,
    dump_profile,
    dump_program,
    dump_schedule,
    load_profile,
    load_program,
    load_schedule,
    verify_program,
    verify_schedule,
    write_json,
)
from pipeloom.ir import (
    Link,
    Links,
    dump_layers,
    parse_layers,
    parse_profile,
    parse_program,
    parse_schedule,
)
from pipeloom.solver import FAMILIES
from tests.fuzz.documents import sound
from tests.support.command_line import layers_document
from tests.support.families import fits
from tests.support.mutants import Document, Mutant, edited, mutants
from tests.support.random_schedules import profiles

HERE = Path(__file__).parent
STAGE = {"t_f": 1, "t_b": 2, "t_w": 0.5, "m_b": 1, "m_w": 0.5}
PARSERS: dict[str, tuple[Callable[[Any, str], Any], Callable[[Any], Document]]] = {
    "profile": (parse_profile, dump_profile),
    "layers": (parse_layers, dump_layers),
    "schedule": (parse_schedule, dump_schedule),
    "program": (parse_program, dump_program),
}
ALL = sound()
SOUND = {kind: ALL[kind] for kind in PARSERS} | {
    "profile": [*ALL["profile"], *(each for each in ALL["unlike"] if "stages" in each)],
    "layers": [*ALL["layers"], *(each for each in ALL["unlike"] if "layers" in each)],
}
DOCUMENTS = [(kind, n) for kind in PARSERS for n in range(len(SOUND[kind]))]


def document(kind: str, number: int) -> Document:
    return through_text(SOUND[kind][number])


def profile(**changes: object) -> Document:
    plain = {"format": "pipeloom.profile", "version": 1, "stages": [STAGE, STAGE], "ranks": 2}
    return plain | changes


def through_text(written: Document) -> Document:
    return json.loads(json.dumps(written, allow_nan=False))  # type: ignore[no-any-return]


@pytest.mark.parametrize(("kind", "number"), DOCUMENTS)
def test_what_is_read_and_written_twice_is_the_same(kind: str, number: int) -> None:
    parse, dump = PARSERS[kind]
    once = through_text(dump(parse(document(kind, number), "f")))
    assert json.dumps(dump(parse(once, "f"))) == json.dumps(once)


def keys_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all keys, in the first entry of each list, but for the schedule of a program."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key)
            yield from () if key == "schedule" else keys_of(inner, (*path, key))
    elif isinstance(value, list) and value:
        yield from keys_of(value[0], (*path, 0))


def faults(kind: str, changed: Document) -> tuple[str, ...]:
    try:
        PARSERS[kind][0](changed, "f.json")
    except InputError as error:
        return error.errors
    return ()


@pytest.mark.parametrize(("kind", "number"), DOCUMENTS)
def test_a_key_that_is_missing_misspelt_or_wrong_is_one_line(kind: str, number: int) -> None:
    sound_one, refused = document(kind, number), 0
    for path in keys_of(sound_one):
        missing, misspelt, wrong = (copy.deepcopy(sound_one) for _ in range(3))
        *_, key = path
        value = place(missing, path).pop(key)
        place(misspelt, path)[key + "x"] = place(misspelt, path).pop(key)
        place(wrong, path)[key] = {"x": []} if isinstance(value, list) else [[{}]]
        (line,) = faults(kind, wrong)
        assert line.startswith("f.json: "), line
        assert str(key) in line, line
        without, misread = faults(kind, missing), faults(kind, misspelt)
        assert len(without) <= 1, without
        assert all(str(key) in line for line in without), without
        assert bool(misread) == bool(without), path
        refused += bool(without)
    assert refused > 2


def place(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path[:-1]:
        value = value[key]
    return value


REFUSED = {
    "profile": profile(),
    "links": dump_profile(Profile((StageProfile(1, 1, 1),) * 3, 3, links=Links(Link(0.5, 2.0)))),
    "layers": layers_document(),
    "schedule": dump_schedule(build_family("1f1b", parse_profile(profile(), "p"), 2)),
    "program": dump_program(
        compile_schedule(build_family("1f1b", parse_profile(profile(), "p"), 2))
    ),
}
VERIFIERS = {"schedule": verify_schedule, "program": verify_program}


@pytest.mark.parametrize("mutant", mutants(HERE / "refusals.txt"), ids=str)
def test_what_is_refused_is_said_in_these_words(mutant: Mutant) -> None:
    base = mutant.base
    changed = edited(through_text(REFUSED[base]), mutant.edits)
    found = faults("profile" if base == "links" else base, changed)
    assert [line.removeprefix("f.json: ") for line in found] == list(mutant.expected)
    if base in VERIFIERS:
        with pytest.raises(InputError) as caught:
            VERIFIERS[base](changed)
        assert caught.value.errors == tuple(f"{base}: {line}" for line in mutant.expected)


ONE_EACH = st.integers(1, 4).flatmap(lambda ranks: profiles(ranks, ranks, paired=True))


@given(ONE_EACH, st.sampled_from(list(FAMILIES)), st.integers(1, 6), st.sampled_from(Objective))
def test_any_schedule_and_its_program_read_back(
    profile: Profile, name: str, microbatches: int, objective: Objective
) -> None:
    assume(fits(name, profile.ranks))
    schedule = build_family(name, profile, microbatches, memory_limit=1e13, objective=objective)
    written = through_text(dump_schedule(schedule))
    again = load_schedule(written)
    assert through_text(dump_schedule(again)) == written
    assert again.problem == schedule.problem
    assert again.report == schedule.report
    text = through_text(dump_program(compile_schedule(schedule)))
    assert through_text(dump_program(load_program(text))) == text


@pytest.mark.parametrize("family", ["zb-h2", "interleaved-1f1b:3", "weipipe-interleave"])
def test_the_schedules_of_the_largest_profile_can_be_read(family: str) -> None:
    stage = dict.fromkeys(("t_f", "t_b", "t_w", "m_b", "m_w", "weight_bytes", "grad_bytes"), 1e80)
    links = {"latency": 1e80, "gigabytes_per_second": 1e-9}
    largest = load_profile(profile(ranks=3, stages=[stage], links=links))
    schedule = dump_schedule(build_family(family, largest, 50))
    assert verify_schedule(schedule) == []
    pieces = 3 if ":3" in family else 1
    assert load_schedule(schedule).problem.profile == largest.split(pieces)


def test_a_dash_is_standard_input_and_output(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    text = json.dumps(profile()).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    loaded = load_profile("-")
    write_json(dump_profile(loaded), "-")
    assert load_profile(json.loads(capfdbinary.readouterr().out)) == loaded


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text("old")
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json({"a": float("nan")}, str(path))
    with pytest.raises(InputError, match=r"cannot be written: there is no folder .*nowhere"):
        write_json({}, str(tmp_path / "nowhere" / "p.json"))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("latency", "of_links"), [({"latency": 3}, 3), ({}, 0)])
def test_latency_is_0_unless_given_and_of_a_pair_that_of_the_links(
    latency: dict[str, int], of_links: int
) -> None:
    pairs = [[0, 1, {"gigabytes_per_second": 2}]]
    given_ = profile(links={"gigabytes_per_second": 1, "pairs": pairs} | latency)
    links = Links(Link(of_links, 1), ((0, 1, Link(of_links, 2)),))
    assert load_profile(given_).links == links
    stages = [{**STAGE, "activation_bytes": 1e6, "weight_bytes": 1e6}] * 2
    for family in ("1f1b", "weipipe-interleave"):  # the verifier reads them alike
        schedule = dump_schedule(build_family(family, load_profile(given_ | {"stages": stages}), 4))
        schedule["profile"] = given_ | {"stages": stages}
        assert verify_schedule(schedule) == []


def test_unknown_keys_of_transfers_and_averages_are_let_pass() -> None:
    read = 0
    for number in range(len(SOUND["schedule"])):
        before, changed = document("schedule", number), document("schedule", number)
        for entry in (*(changed.get("transfers") or ()), *chain(*(changed.get("averages") or ()))):
            entry["T_F"], read = 1, read + 1
        assert dump_schedule(load_schedule(changed)) == dump_schedule(load_schedule(before))
        assert verify_schedule(changed) == []
    assert read


@pytest.mark.parametrize(
    ("written", "family", "method", "bound"),
    [
        ({"family": "search", "bound_name": "slots"}, "optimized", "search", "slots"),
        ({"family": "zb-h1", "bound_name": "lanes"}, "zb-h1", None, "crossings-search"),
        ({}, "", None, None),
        ({"family": "optimized", "method": "new", "bound": "b"}, "optimized", "new", "b"),
    ],
)
def test_method_and_bound_may_be_missing_unknown_or_of_before(
    written: dict[str, str], family: str, method: str | None, bound: str | None
) -> None:
    older = document("schedule", 0)
    named = ("family", "method", "bound", "bound_name")
    older["report"] = {k: v for k, v in older["report"].items() if k not in named} | written
    report = load_schedule(older).known_report
    assert (report.family, report.method, report.bound) == (family, method, bound)
    assert verify_schedule(older) == []
    again = dump_schedule(load_schedule(older))["report"]
    assert (again["family"], again["method"], again["bound"]) == (family, method, bound)
