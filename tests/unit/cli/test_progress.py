"""Progress on standard error; Ctrl-C keeps the best result, and ends everything that was
started."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import Any

import pytest

import pipeloom as library
from pipeloom import optimize
from pipeloom.planner import Searching
from pipeloom.solver import Progress
from tests.support.command_line import Command, Done, profile_document, written
from tests.support.processes import Started

STOPPED = [signal.SIGINT, signal.SIGTERM]
COMPILING = "pipeloom: compiling kernels, once on this machine; a time limit does not count this\n"


class Terminal(io.StringIO):
    """A terminal that calls ``press`` whenever something is written."""

    press: Callable[[], object] = staticmethod(lambda: None)

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.press()
        return super().write(text)


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Not a fixture, since pytest replaces the streams when a test begins."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


@pytest.fixture
def told(pipeloom: Command, profile: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """``optimize`` with a search that emits these events."""

    def call(*events: object, words: tuple[str, ...] = ()) -> Done:
        def search(*given: Any, progress: Any, **options: Any) -> library.Result:
            for event in events:
                progress(event)
            return optimize(*given, **options)

        monkeypatch.setattr("pipeloom.planner.optimize.optimize", search)
        short = ("--placement", "linear", "--work-limit", 0.01)
        return pipeloom("optimize", profile, "-m", 2, "--json", *short, *words)

    return call


def now(at: float, best: float | None = 200.0) -> Searching:
    gap = None if best is None else (best - 100.0) / best
    return Searching("", Progress(at, best, 100.0, gap, "search"), False)


def test_a_terminal_shows_one_line_that_is_written_over(
    told: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = on_terminal(monkeypatch)
    told(now(0.0, None), now(1.0))
    assert terminal.getvalue() == (
        "\r\x1b[2K   0.0 s  looking for a first schedule"
        "\r\x1b[2K   1.0 s  best 200 ms  bound 100 ms  gap 50.00 %  search\n"
    )
    told(now(2.0), words=("-q",))
    assert "2.0 s" not in terminal.getvalue()


def test_a_log_ends_with_the_last_improvement(told: Callable[..., Done]) -> None:
    lines = told(now(0.0, None), now(1.0), now(1.1, 180.0), now(1.2, 150.0), now(1.3, 150.0)).err
    assert re.findall(r"([0-9.]+) s  best", lines) == ["1.0", "1.3"]


@pytest.mark.parametrize(("seconds", "said"), [(2.0, COMPILING), (0.5, "")])
def test_long_compiling_is_announced_and_slow_loading_is_not(
    pipeloom: Command, profile: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, said: str
) -> None:
    monkeypatch.setattr("pipeloom.ir.cost.simulator.warm_up", lambda: sleep(0.5))
    monkeypatch.setattr("pipeloom.ir.kernels.seconds_compiling", lambda: seconds)
    assert pipeloom("build", "gpipe", profile, "-m", 2, "--json").err == said


LINES = {
    "optimize P -m 12 --memory-limit 1.5 -o OUT --placement linear": "this is the best schedule",
    "compare P -m 12 --memory-limit 1.5 --placement linear": "optimize is the best",
}


@pytest.mark.parametrize(("line", "number"), [*zip(LINES, STOPPED * 2, strict=False)])
def test_the_first_interrupt_keeps_the_best(
    pipeloom: Command,
    profile: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    number: signal.Signals,
) -> None:
    def press() -> None:
        if not pressed:
            pressed.append(number)
            os.kill(os.getpid(), number)

    pressed: list[signal.Signals] = []
    before = signal.getsignal(number)
    terminal = on_terminal(monkeypatch)
    terminal.press = press  # type: ignore[method-assign]
    out = profile.with_name("out.json")
    words = line.replace("P ", f"{profile} ").replace("OUT", str(out)).split()
    done = pipeloom(*words)
    assert done.code == 0
    assert "pipeloom: stopping: keeping the best so far\n" in done.err
    assert f"pipeloom: interrupted: {LINES[line]} so far\n" in terminal.getvalue()
    assert out.exists() is ("-o" in words)
    assert signal.getsignal(number) is before


@pytest.mark.usefixtures("ctrl_c")
def test_an_interrupt_ends_even_an_explanation(
    pipeloom: Command, profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def press(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(library.Result, "explain", press)
    out = tmp_path / "best.json"
    done = pipeloom("optimize", profile, "-m", 4, "--explain", "-q", "-o", out)
    assert (done.code, done.out) == (130, "")
    assert done.err.splitlines()[-1] == "pipeloom: interrupted; nothing was written"
    assert not out.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_cbc_ends_with_a_killed_solve_and_its_folder_too_with_an_interrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = [(10, 6, 15), (3, 3, 1), (20, 3, 15), (9, 16, 12), (19, 10, 13)]
    # five stages, on which CBC works for minutes
    stages = [{"t_f": f, "t_b": b, "t_w": w, "m_b": 1, "m_w": 0.5} for f, b, w in times]
    document = profile_document(stages=stages, ranks=5, t_comm=2.5, memory_limit=3)
    path = written(tmp_path / "p.json", document)
    words = ["optimize", path, "-m", 8, "--solver", "milp", "--time-limit", 200]
    words += ["--placement", "linear"]

    def solving(name: str) -> Started:
        output = ["-o", tmp_path / f"{name}.json"]
        run = Started([*words, *output], tmp_path / name)
        run.until(lambda found: "cbc" in found.values())
        assert run.process.poll() is None, "it ended before CBC began"
        return run

    killed = solving("killed")
    assert killed.ended(signal.SIGKILL)[0] == -signal.SIGKILL
    assert killed.running() == {}
    following = solving("next")
    code, line, left = following.ended(signal.SIGINT, signal.SIGINT)
    assert (code in (0, 130), left) == (True, []), (code, line)
    assert not list(following.folder.iterdir())
