"""Processes start, answer, and end together: the first failure wins and nobody is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from pipeloom.ir import InputError
from pipeloom.runtime import LaunchError, launch_ranks
from tests.support.processes import ENVIRONMENT, sockets, until


def listening() -> list[str]:
    """The local addresses, as /proc/net shows them, at which this process listens."""
    links = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # that of the folder itself
            links.append(str(path.readlink()))
    own = {link[8:-1] for link in links if link.startswith("socket:[")}
    return [row[1] for row in sockets() if row[3] == "0A" and row[9] in own]


def environment(name: str, tell: Callable[[list[str]], object]) -> tuple[str | None, int]:
    tell(listening())
    return os.environ.get(name), torch.get_num_threads()


def wrong_input() -> None:
    if dist.get_rank() == 0:
        raise InputError("model.py: no such thing")
    time.sleep(60)


def parent(folder: str) -> None:
    """Its fork server is killed; then it launches by a new one, and waits."""
    from tests.support.inside import processes  # imports much that ranks do not need

    processes.PRELOADED = ("pytest", processes.FROZEN)  # a server that starts soon
    with pytest.raises(LaunchError, match=r"^rank \d: its fork server died, all ranks are ended$"):
        launch_ranks(orphaned, 2, (folder,), timeout=60)
    launch_ranks(stopped, 2, (folder,))


def orphaned(folder: str) -> None:
    Path(folder, f"orphaned {os.getpid()}").touch()
    dist.barrier()
    if dist.get_rank() == 0:
        os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(120)


def stopped(folder: str) -> None:
    Path(folder, f"stopped {os.getpid()}").touch()
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(120)


def alive(name: str) -> bool:
    state = Path("/proc", name.rpartition(" ")[2], "stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(sys.platform != "linux", reason="there is no fork server")
def test_nobody_outlives_a_killed_fork_server_or_parent(tmp_path: Path) -> None:
    """A rank that is stopped neither."""
    script = f"from tests.distributed.test_launch import parent; parent({str(tmp_path)!r})"
    process = subprocess.Popen([sys.executable, "-c", script], env=ENVIRONMENT)

    def ranks(name: str) -> list[str]:
        return [path.name for path in tmp_path.iterdir() if path.name.startswith(name)]

    try:
        until(lambda: len(ranks("stopped")) == 2 or process.poll() is not None)
        assert len(ranks("orphaned")) == 2
        assert not any(map(alive, ranks("orphaned")))
    finally:
        process.kill()
        process.wait()
    assert len(ranks("stopped")) == 2
    until(lambda: not any(map(alive, ranks("stopped"))))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_each_launch_has_the_environment_of_its_moment_and_listens_on_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, found = set(listening()), list[str]()
    for threads, value in enumerate((None, "second"), start=1):
        monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
        if value is not None:
            monkeypatch.setenv("PIPELOOM_TEST", value)
        ended = launch_ranks(
            environment,
            2,
            ("PIPELOOM_TEST",),
            timeout=60,
            listener=lambda told: found.extend([*told, *listening()]),
        )
        assert ended == dict.fromkeys(range(2), (value, threads))
    assert found
    assert all(address.startswith("0100007F:") for address in {*found} - before)


def test_the_exit_code_is_that_of_the_error() -> None:
    with pytest.raises(LaunchError, match=r"^rank 0: model.py: no such thing$") as caught:
        launch_ranks(wrong_input, 2, timeout=60)
    assert caught.value.exit_code == InputError.exit_code
    assert "wrong_input" in caught.value.details


def test_ranks_that_give_no_answer_in_time_are_named() -> None:
    with pytest.raises(LaunchError, match=r"^no answer in time from rank 0, 1$"):
        launch_ranks(time.sleep, 2, (60,), timeout=1.0)
