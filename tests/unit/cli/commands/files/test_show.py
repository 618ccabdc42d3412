"""``show``: pictures by the extension, in the terminal, of several files and of programs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.command_line import Command, written


def test_show_draws_by_the_extension(pipeloom: Command, schedule: Path, tmp_path: Path) -> None:
    for extension, begin in ((".svg", "<svg"), (".html", "<!doctype html>"), (".txt", "small, ")):
        path = tmp_path / f"x{extension}"
        done = pipeloom("show", schedule, "-o", path)
        assert (done.code, done.out) == (0, f"written to {path}\n")
        assert path.read_text().startswith(begin)
    trace = tmp_path / "x.trace.json"
    assert pipeloom("show", schedule, "-o", trace).code == 0
    assert json.loads(trace.read_text())["traceEvents"]


def test_show_in_the_terminal_has_no_colours_but_on_one(pipeloom: Command, schedule: Path) -> None:
    plain = pipeloom("show", schedule, "--columns", 60)
    assert plain.code == 0
    assert "\x1b" not in plain.out
    assert "\x1b" in pipeloom("show", schedule, "--colour", "always").out
    assert pipeloom("show", schedule, "--json").json["schedules"][0]["microbatches"] == 3


def test_show_says_that_a_schedule_can_never_run(
    pipeloom: Command, schedule: Path, tmp_path: Path
) -> None:
    document = json.loads(schedule.read_text())
    row = document["order"][0]
    row.insert(0, row.pop())  # its last W first
    stuck = written(tmp_path / "stuck.json", document)
    done = pipeloom("show", stuck)
    assert done.code == 0
    assert done.err.startswith(f"pipeloom: note: {stuck}: can never run: ")
    assert "rank 0's 0W2 waits for rank 0's 0B2" in done.err
    assert done.err.endswith("drawn by the times in the file\n")
    assert pipeloom("show", schedule).err == ""


@pytest.mark.parametrize("command", ["compile", "show"])
@pytest.mark.parametrize("key", ["memory_limit", "period", "end"])
def test_an_invalid_schedule_is_not_compiled_and_drawn_with_a_note(
    pipeloom: Command, schedule: Path, tmp_path: Path, key: str, command: str
) -> None:
    document = json.loads(schedule.read_text())
    document["report"] |= {"lower_bound": 1.0, "gap": 1.0 - 1.0 / document["report"]["period"]}
    place = {"period": document["report"], "end": document["order"][1][-1]}.get(key, document)
    place[key] = [1.0] * document["ranks"] if key == "memory_limit" else 9e3
    wrong = written(tmp_path / "wrong.json", document)
    first = pipeloom("verify", wrong).out.splitlines()[0].removeprefix(f"{wrong}: ")
    done = pipeloom(command, wrong)
    if command == "compile":
        assert (done.code, done.out) == (1, "")
        assert done.err.startswith(f"pipeloom: {wrong}: {first}\n")
    else:
        assert (done.code, done.err.count("\n")) == (0, 1)
        assert f"{wrong}: not valid: {first}; drawn" in done.err


def test_show_of_two_files_draws_both(pipeloom: Command, schedule: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    shutil.copy(schedule, other)
    svg = pipeloom("show", schedule, other, "--as", "svg", "--memory").out
    assert svg.count(">zb-h1, 10.00 % bubble</text>") == 2
    assert svg.count("memory held") == 2
    trace = json.loads(pipeloom("show", schedule, other, "--as", "trace").out)
    assert {event["pid"] for event in trace["traceEvents"]} == {0, 1}


def test_show_calls_panels_by_their_titles(pipeloom: Command, schedule: Path) -> None:
    titles = ["--title", "12 GB & more", "--title", "16 GB"]
    svg = pipeloom("show", schedule, schedule, *titles, "--as", "svg").out
    assert ">12 GB &amp; more: zb-h1, 10.00 % bubble</text>" in svg
    assert ">16 GB: zb-h1, 10.00 % bubble</text>" in svg
    assert pipeloom("show", schedule, *titles[2:]).out.startswith("16 GB, small, 2 ranks")


def test_png_needs_a_converter(
    pipeloom: Command, schedule: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = pipeloom("show", schedule, "-o", tmp_path / "x.png")
    assert done.code == 2
    assert done.err.endswith("write .svg instead\n")
    fake = tmp_path / "rsvg-convert"
    fake.write_text("#!/bin/sh\nprintf PNG\n")
    fake.chmod(0o755)
    assert pipeloom("show", schedule, "-o", tmp_path / "x.png").code == 0
    assert (tmp_path / "x.png").read_bytes() == b"PNG"


def test_compile_and_show_its_program(pipeloom: Command, schedule: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.json"
    done = pipeloom("compile", schedule, "--tied", "0,1", "-o", program, "--json")
    assert done.code == 0
    instructions = json.loads(program.read_text())["instructions"]
    assert done.json["instructions"] == list(map(len, instructions))
    assert "reduce 0 1" in instructions[0]
    shown = pipeloom("show", program, "--columns", 80).out
    assert shown == pipeloom("show", schedule, "--columns", 80).out


def test_color_is_colour(pipeloom: Command, schedule: Path) -> None:
    shown = [pipeloom("show", schedule, word, "always") for word in ("--color", "--colour")]
    assert shown[0] == shown[1]
    assert "\x1b[" in shown[0].out
