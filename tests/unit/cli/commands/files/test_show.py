"""``show``: pictures by file extension, in the terminal, of several files and of programs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.command_line import Command, written


def test_show_draws_by_the_extension(
    pipeloom: Command, schedule: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    converter = tmp_path / "rsvg-convert"
    converter.write_text("#!/bin/sh\nprintf PNG\n")
    converter.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    begins = {".svg": "<svg", ".html": "<!doctype html>", ".txt": "small, ", ".png": "PNG"}
    for extension, begin in begins.items():
        path = tmp_path / f"x{extension}"
        done = pipeloom("show", schedule, "-o", path)
        assert (done.code, done.out) == (0, f"written to {path}\n")
        assert path.read_text().startswith(begin)


def test_a_page_without_room_for_a_microbatch_has_no_explanation(
    pipeloom: Command, schedule: Path
) -> None:
    document = json.loads(schedule.read_text())
    document["memory_limit"] = 0.1
    page = pipeloom("show", written(schedule, document), "--as", "html")
    assert (page.code, page.out[:9], '"words"' in page.out) == (0, "<!doctype", False)


def test_colours_titles_and_programs_in_the_terminal(
    pipeloom: Command, schedule: Path, program: Path
) -> None:
    plain = pipeloom("show", schedule, "--columns", 60)
    assert (plain.code, plain.err, "\x1b" in plain.out) == (0, "", False)
    assert pipeloom("show", program, "--columns", 60).out == plain.out
    painted = [pipeloom("show", schedule, word, "always").out for word in ("--color", "--colour")]
    assert painted[0] == painted[1]
    assert "\x1b[" in painted[0]
    assert pipeloom("show", schedule, "--json").json["schedules"][0]["microbatches"] == 3
    assert pipeloom("show", schedule, "--title", "16 GB").out.startswith("16 GB, small, 2 ranks")
    for kind in ("text", "svg", "html"):
        done = pipeloom("show", schedule, "--title", "a\x1b[31m\nb", "--as", kind)
        words = "\\x1b[31m\\nb" if kind != "html" else "\\\\x1b[31m\\\\nb"  # HTML has JSON
        assert (words in done.out, "\x1b" in done.out) == (True, False)


def test_several_files_are_panels_or_processes_by_their_titles(
    pipeloom: Command, tmp_path: Path, schedule: Path
) -> None:
    other, document = tmp_path / "other.json", json.loads(schedule.read_text())
    for op in (op for ops in document["order"] for op in ops):
        op["start"], op["end"] = op["start"] * 1.1, op["end"] * 1.1
    written(other, document)
    titles = ["--title", "12 GB & more", "--title", "16 GB"]
    svg = pipeloom("show", schedule, schedule, *titles, "--as", "svg", "--memory").out
    panels = re.findall(r">([^<]*): zb-h1, 10.00 % bubble</text>", svg)
    assert panels == ["12 GB &amp; more", "16 GB"]
    assert svg.count("memory held") == 2
    trace = tmp_path / "x.trace.json"
    assert pipeloom("show", schedule, "--measured", other, "-o", trace).code == 0
    events = json.loads(trace.read_text())["traceEvents"]
    shown = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert [name.partition(",")[0] for name in shown] == ["planned", "measured"]
