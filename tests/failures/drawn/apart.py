"""A network and a disk for this process, and what a fault leaves in them."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from pipeloom import InputError
from tests.support.processes import sockets

NEW_MOUNTS, NEW_NETWORK = 0x00020000, 0x40000000  # from sched.h: CLONE_NEWNS, CLONE_NEWNET
MARK = "PIPELOOM_CHAOS"
SHARED_MEMORY = Path("/dev/shm")
_DISK = "-t tmpfs -o size=64m pipeloom-chaos"
_WAITS_FOR_LATE_PACKETS = "06"  # from Linux's tcp_states.h: TIME_WAIT, a closed connection


@contextmanager
def set_apart(folder: Path) -> Iterator[None]:
    """Run this process, and those that it starts, in a separate network, with a separate disk at
    ``folder`` and separate shared memory. Raises InputError if that is not possible."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_NETWORK | NEW_MOUNTS):
        raise InputError(f"a namespace: {os.strerror(ctypes.get_errno())}")
    try:
        for words in ("--make-rprivate /", f"{_DISK} {folder}", f"{_DISK} {SHARED_MEMORY}"):
            subprocess.run(["mount", *words.split()], check=True)
        loopback(up=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise InputError(str(error)) from error
    os.environ[MARK] = uuid4().hex
    try:
        yield
    finally:  # some process may still use it
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def loopback(*, up: bool) -> None:
    """Enable or disable all links."""
    subprocess.run(["ip", "link", "set", "lo", "up" if up else "down"], check=True)


def fill(folder: Path) -> Path:
    """A new file that fills the disk of ``folder``."""
    path = folder / "filler"
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(bytes(1 << 16)):
            pass
    return path


def left_behind() -> set[str]:
    """Processes with this one's mark, temporary files, files in shared memory, and sockets."""
    files = [*Path(os.environ["TMPDIR"]).iterdir(), *SHARED_MEMORY.iterdir()]
    late = {f"socket {row[1]}" for row in sockets() if row[3] != _WAITS_FOR_LATE_PACKETS}
    return {str(path) for path in files} | late | set(_processes())


def _processes() -> Iterator[str]:
    mark = f"{MARK}={os.environ[MARK]}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has just ended
            marked = mark in path.read_bytes().split(b"\0")
            if marked and int(path.parent.name) != os.getpid():
                yield f"process {path.parent.name}"
