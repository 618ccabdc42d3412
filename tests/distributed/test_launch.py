"""Processes start, answer, and end together: the first failure wins and nobody is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from pipeloom.ir import InputError
from pipeloom.ir.litter import remove_litter
from pipeloom.runtime import LaunchError, launch_ranks
from tests.support.launched import until


def add_ranks(extra: int) -> float:
    total = torch.tensor(float(dist.get_rank() + extra))
    dist.all_reduce(total)
    return total.item()


def hang_on(rank: int) -> list[str]:
    """One rank sleeps; the others wait for it in a collective."""
    dist.barrier()
    if dist.get_rank() == rank:
        time.sleep(60)
    dist.barrier()
    return []


def listening() -> list[str]:
    """The local addresses, as /proc/net shows them, at which this process listens."""
    links = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # that of the folder itself
            links.append(str(path.readlink()))
    own = {link[8:-1] for link in links if link.startswith("socket:[")}
    lines = [
        line.split()
        for kind in ("tcp", "tcp6")
        for line in Path("/proc/self/net", kind).read_text().splitlines()[1:]
    ]
    return [row[1] for row in lines if row[3] == "0A" and row[9] in own]


def tell_listening(tell: Callable[[list[str]], object]) -> None:
    tell(listening())


def orphan(folder: str) -> None:
    (Path(folder) / str(os.getpid())).touch()
    dist.barrier()
    if dist.get_rank() == 0:
        os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(120)


def wrong_input() -> None:
    if dist.get_rank() == 0:
        raise InputError("model.py: no such thing")
    time.sleep(60)


def alive(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z"


def environment(name: str) -> tuple[str | None, int]:
    return os.environ.get(name), torch.get_num_threads()


def test_each_launch_has_the_environment_of_its_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert launch_ranks(environment, 1, ("PIPELOOM_TEST",), timeout=60) == {0: (None, 1)}
    monkeypatch.setenv("PIPELOOM_TEST", "second")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert launch_ranks(environment, 1, ("PIPELOOM_TEST",), timeout=60) == {0: ("second", 2)}


@pytest.mark.skipif(sys.platform != "linux", reason="there is no fork server")
def test_nobody_outlives_a_killed_fork_server(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"^rank \d: its fork server died, all ranks are ended$"):
        launch_ranks(orphan, 2, (str(tmp_path),), timeout=60)
    pids = [int(path.name) for path in tmp_path.iterdir()]
    assert len(pids) == 2
    until(lambda: not any(map(alive, pids)))
    assert launch_ranks(add_ranks, 2, (10,), timeout=60) == {0: 21.0, 1: 21.0}  # by a new server


def test_the_exit_code_is_that_of_the_error() -> None:
    with pytest.raises(LaunchError, match=r"^rank 0: model.py: no such thing$") as caught:
        launch_ranks(wrong_input, 2, timeout=60)
    assert caught.value.exit_code == InputError.exit_code
    assert "wrong_input" in caught.value.details


def test_nobody_outlives_a_killed_parent(tmp_path: Path) -> None:
    """A rank that is stopped neither; the folder of sockets is left to the next start."""
    script = textwrap.dedent(f"""
        import os, pathlib, signal, time
        from pipeloom.runtime import launch_ranks
        def work():
            (pathlib.Path({str(tmp_path)!r}) / str(os.getpid())).touch()
            if os.environ["RANK"] == "1":
                os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(120)
        if __name__ == "__main__":
            launch_ranks(work, 2)
    """)
    path = tmp_path.with_suffix(".py")
    path.write_text(script)
    folder = tmp_path.with_name("own")
    folder.mkdir(exist_ok=True)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(folder)}
    parent = subprocess.Popen([sys.executable, str(path)], env=environment)
    try:
        until(lambda: len(list(tmp_path.iterdir())) == 2)
    finally:
        parent.kill()
        parent.wait()
    pids = [int(p.name) for p in tmp_path.iterdir()]
    until(lambda: not any(map(alive, pids)))
    (left,) = folder.iterdir()
    remove_litter(left.name.partition("-")[0] + "-", folder)
    assert not list(folder.iterdir())


def test_of_ranks_that_give_no_answer_the_one_that_hangs_is_named() -> None:
    words = r"^no answer in time from rank 1; rank 0, 2 waits for another$"
    with pytest.raises(LaunchError, match=words):
        launch_ranks(hang_on, 3, (1,), timeout=6.0)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_nothing_listens_beyond_loopback() -> None:
    before, found = set(listening()), list[str]()
    launch_ranks(
        tell_listening, 2, timeout=60, listener=lambda told: found.extend([*told, *listening()])
    )
    assert found
    assert all(address.startswith("0100007F:") for address in {*found} - before)
