"""From another network namespace nothing of what pipeloom launches can be reached."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch.distributed as dist

from pipeloom.runtime.launch.processes import launch
from tests.distributed.test_launch import listening
from tests.support.command_line import ENVIRONMENT

ROOT = Path(__file__).parents[2]
ADDRESSES = ("10.173.1.1", "fd17:1::1")  # of the link that leads here from the other namespace
PROBE = textwrap.dedent("""
    import socket, sys
    for place in sys.argv[1:]:
        address, _, port = place.rpartition(":")
        try:
            socket.create_connection((address, int(port)), 2.0).close()
            print(place)
        except OSError:
            pass
""")


def ports() -> list[int]:
    """Those of the rendezvous and of this rank's connections."""
    own = [int(address.rpartition(":")[2], 16) for address in listening()]
    found: list[list[int]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(found, own)
    return [int(os.environ["MASTER_PORT"]), *(port for row in found for port in row)]


def reached(other: int) -> list[str]:
    """The places that a process of another network reaches; rank 0 alone tries, and listens on all
    interfaces to see that it could."""
    tried = ports()
    reachable = ""
    if dist.get_rank() == 0:
        with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as open_:
            tried = [*tried, open_.getsockname()[1]]
            places = [f"{address}:{port}" for address in ADDRESSES for port in tried]
            words = ["nsenter", "-t", str(other), "-n", sys.executable, "-c", PROBE, *places]
            reachable = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        own = {f"{address}:{tried[-1]}" for address in ADDRESSES}
        assert own <= set(reachable.split()), "the open port should have been reached"
        reachable = " ".join(set(reachable.split()) - own)
    dist.barrier()
    return [str(len(tried)), *reachable.split()]


def main() -> None:
    """Within a network namespace of its own: a link to another one, and a launch."""
    other = subprocess.Popen(["unshare", "-n", "sleep", "300"])
    try:
        own = Path("/proc/self/ns/net").readlink()
        while Path(f"/proc/{other.pid}/ns/net").readlink() == own:
            time.sleep(0.01)
        _link(other.pid)
        found = launch(reached, 2, (other.pid,), timeout=120)
    finally:
        other.kill()
        other.wait()
    assert int(found[0][0]) >= 4, "the rendezvous, a port of each rank, and the open one"
    assert found[0][1:] == []


def _link(other: int) -> None:
    there = ["nsenter", "-t", str(other), "-n"]
    ip = ["ip"]
    ten = "link add v0 type veth peer name v1 netns"
    commands = [[*ip, "link", "set", "lo", "up"], [*ip, *ten.split(), str(other)]]
    for prefix, name, end in (([], "v0", 1), (there, "v1", 2)):
        commands.append([*prefix, *ip, "addr", "add", f"10.173.1.{end}/24", "dev", name])
        commands.append([*prefix, *ip, "addr", "add", f"fd17:1::{end}/64", "dev", name, "nodad"])
        commands.append([*prefix, *ip, "link", "set", name, "up"])
    for command in commands:
        subprocess.run(command, check=True)


def _namespaces() -> str | None:
    """Why there can be none here."""
    for tool in ("ip", "unshare", "nsenter"):
        if shutil.which(tool) is None:
            return f"{tool}: not found"
    tried = subprocess.run(
        ["unshare", "-n", "ip", "link", "add", "v0", "type", "veth"],
        capture_output=True,
        text=True,
        check=False,
    )
    return tried.stderr.strip() or None


@pytest.mark.slow
def test_another_network_reaches_nothing() -> None:
    if (why := _namespaces()) is not None:
        pytest.skip(f"no network namespaces: {why}")
    script = "from tests.distributed.test_apart import main; main()"
    paths = os.pathsep.join([ENVIRONMENT["PYTHONPATH"], str(ROOT)])
    done = subprocess.run(
        ["unshare", "-n", sys.executable, "-c", script],
        env=ENVIRONMENT | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
