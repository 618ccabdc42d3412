"""A ring of network namespaces made, trained on and removed, where this user and machine can."""

from __future__ import annotations

import os
import subprocess

import pytest

from benchmarks.slow_link.configurations import Configuration, gpt
from benchmarks.slow_link.experiment import Settings, allclose, run
from benchmarks.slow_link.network import PREFIX, Ring, namespaces
from pipeloom.ir.errors import InputError

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def rings() -> None:
    try:
        with namespaces(Ring(3)):
            pass
    except InputError as error:
        pytest.skip(str(error))


def ours(process: int) -> list[str]:
    """The namespaces that ``process`` made and that are there."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    names = [line.split()[0] for line in listed.stdout.splitlines()]
    return [name for name in names if name.startswith(f"{PREFIX}-{process}-")]


def test_all_schemes_learn_alike_and_cross_the_slow_link_as_planned() -> None:
    tiny = Configuration("tiny", gpt(4, 64, 64, 1), 4, (20.0, 20.0, 20.0))
    result = run(tiny, Settings(steps=4, rounds=1))
    assert not ours(os.getpid())
    schemes = result["schemes"]
    names = {scheme["scheme"] for scheme in schemes}
    assert names >= {"activations", "weights", "fsdp", "fully_shard"}
    assert all(allclose(scheme["losses"], schemes[0]["losses"]) for scheme in schemes)
    assert schemes[0]["losses"][-1] < schemes[0]["losses"][0]
    for scheme in schemes[:-1]:
        for planned, carried in zip(scheme["planned_wires"], scheme["wires"], strict=True):
            for bytes_planned, bytes_carried in zip(planned, carried, strict=True):
                # headers, acknowledgements and the step's own small talk come on top
                assert bytes_planned <= bytes_carried <= 1.1 * bytes_planned + 100_000
