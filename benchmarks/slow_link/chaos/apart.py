"""A network and a disk of this process's own, and what is left in them behind a fault."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

NEW_MOUNTS, NEW_NETWORK = 0x00020000, 0x40000000  # of sched.h: CLONE_NEWNS, CLONE_NEWNET
MARK = "PIPELOOM_CHAOS"
MEGABYTES = 64  # of the disk that is filled
SHARED_MEMORY = Path("/dev/shm")
_WAITS_FOR_LATE_PACKETS = "06"  # of Linux's tcp_states.h: TIME_WAIT, a closed connection


def set_apart(folder: Path) -> str | None:
    """Puts this process, and those that it starts, into a network of their own, with a disk of
    their own at ``folder`` and shared memory of their own; else why that cannot be."""
    for tool in ("ip", "mount"):
        if shutil.which(tool) is None:
            return f"{tool}: not found"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_NETWORK | NEW_MOUNTS):
        return f"a namespace: {os.strerror(ctypes.get_errno())}"
    for words in (["--make-rprivate", "/"], [*_disk(folder)], [*_disk(SHARED_MEMORY)]):
        if subprocess.run(["mount", *words], check=False).returncode:
            return f"mount {' '.join(words)}: failed"
    os.environ[MARK] = uuid4().hex
    loopback(up=True)
    return None


def _disk(folder: Path) -> tuple[str, ...]:
    return ("-t", "tmpfs", "-o", f"size={MEGABYTES}m", "pipeloom-chaos", str(folder))


def unmount(folder: Path) -> None:
    """Gives the disk at ``folder`` back, whoever still looks into it."""
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def loopback(*, up: bool) -> None:
    """Mends, or cuts, all links."""
    subprocess.run(["ip", "link", "set", "lo", "up" if up else "down"], check=True)


def fill(folder: Path) -> Path:
    """A new file that takes all that is free on the disk of ``folder``."""
    path = folder / "filler"
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(bytes(1 << 16)):
            pass
    return path


def left_behind() -> set[str]:
    """The processes with this one's mark, temporary files, files in shared memory and sockets."""
    files = [*Path(os.environ["TMPDIR"]).iterdir(), *SHARED_MEMORY.iterdir()]
    return {str(path) for path in files} | _processes() | _sockets()


def _processes() -> set[str]:
    mark, found = f"{MARK}={os.environ[MARK]}".encode(), set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes().split(b"\0") and int(path.parent.name) != os.getpid():
                found.add(f"process {path.parent.name}")
        except OSError:  # it has just ended
            continue
    return found


def _sockets() -> set[str]:
    lines = [
        line.split()
        for kind in ("tcp", "tcp6")
        for line in Path("/proc/self/net", kind).read_text().splitlines()[1:]
    ]
    return {f"socket {row[1]}" for row in lines if row[3] != _WAITS_FOR_LATE_PACKETS}
