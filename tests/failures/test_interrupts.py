"""An interrupted run prints one line and leaves nothing, at any time, and however its ranks were
started."""

from __future__ import annotations

import json
import signal
import socket
import sys
import time
from pathlib import Path
from uuid import uuid4

import pytest

from pipeloom.compiler import compile_schedule
from pipeloom.ir import dump_program
from tests.support.processes import Started
from tests.support.schedules import schedule

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
MODEL = ["--model", "examples.gpt:small", "-q"]
INTERRUPTED = "pipeloom: interrupted"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Programs for two ranks, by their number of microbatches."""
    folder = tmp_path_factory.mktemp("programs")
    made = {count: folder / f"program{count}.json" for count in (2, 4)}
    for count, path in made.items():
        path.write_text(json.dumps(dump_program(compile_schedule(schedule("1f1b", 2, count)))))
    return made


@pytest.fixture
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A path for temporary files that is short enough for sockets."""
    return tmp_path_factory.getbasetemp() / uuid4().hex[:8]


# number of processes that it has started when it is interrupted: the fork server, then the ranks
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("processes", [2, 3, 4, 5])
def test_a_run_that_is_told_to_end_while_it_starts(
    programs: dict[int, Path], own: Path, processes: int, number: signal.Signals
) -> None:
    run = Started(["run", programs[4], *MODEL, "--steps", 100_000], own)
    run.until(lambda found: len(found) >= processes)
    code, line, left = run.ended(number)
    assert (code, left) == (130, [])
    assert line.startswith(INTERRUPTED)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.02, 1.0, 3.0])
def test_a_run_that_is_told_to_end_before_it_listens_leaves_nothing(
    programs: dict[int, Path], own: Path, seconds: float
) -> None:
    """While Python starts and imports, SIGTERM ends it with -15, like any process."""
    run = Started(["run", programs[4], *MODEL, "--steps", 100_000], own)
    time.sleep(seconds)
    code, line, left = run.ended(signal.SIGTERM)
    assert left == []
    assert (code, line) == (-signal.SIGTERM, "") or (code == 130 and line.startswith(INTERRUPTED))


def as_torchrun(own: Path, programs: dict[int, Path], seconds: int) -> list[tuple[int, str]]:
    """How runs end that are these ranks out of two, each with its program; they must leave
    nothing."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    given = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "LOCAL_RANK": "0"}
    runs = [
        Started(
            ["run", program, *MODEL, "--timeout", seconds],
            own.with_name(f"{own.name}{rank}"),
            **given,
            RANK=str(rank),
            GLOO_SOCKET_IFNAME="lo",
        )
        for rank, program in programs.items()
    ]
    ended = [run.ended() for run in runs]
    assert [left for _, _, left in ended] == [[], []]
    return [(code, line) for code, line, _ in ended]


@pytest.mark.slow
def test_programs_of_different_sizes_and_ranks_beyond_the_world_end_in_a_line_each(
    programs: dict[int, Path], own: Path
) -> None:
    """Regression: one ended with C++'s ``terminate called without an active exception``, -6."""
    for code, line in as_torchrun(own, dict(enumerate(programs.values())), 60):
        assert code == 2
        assert "program: expected one on all ranks, got " in line
    assert as_torchrun(own.with_name(f"{own.name}x"), dict.fromkeys((0, 2), programs[4]), 3) == [
        (1, "pipeloom: rank 1: not there where all ranks start, waited at most 3 s"),
        (2, "pipeloom: RANK: expected a whole number from 0 to 1, got '2'"),
    ]
