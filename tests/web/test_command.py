"""The command ``serve``: where it listens, and how it ends."""

from __future__ import annotations

import socket

import pytest

from pipeloom.web import bound
from tests.support.command_line import called
from tests.support.served import LONG, serving


def test_a_port_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        line = called("serve", "--port", port).refusal
    assert line == f"pipeloom: --port: expected a free port that may be used, got {port}"


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-name.invalid", "1.2.3.4.5"])
def test_an_address_of_another_machine_is_one_line(host: str) -> None:
    line = called("serve", "--host", host, "--port", 0).refusal
    assert line.startswith(
        f"pipeloom: --host: expected an address or name of this machine, got '{host}'"
    )


def test_by_default_the_next_free_port_is_taken() -> None:
    first, second = bound("127.0.0.1"), bound("127.0.0.1")
    with first.socket, second.socket:
        assert first.port >= 8080
        assert second.port > first.port
        assert str(first) == f"http://127.0.0.1:{first.port}/ (Ctrl-C ends it)"


def test_other_machines_are_mentioned() -> None:
    at = bound("0.0.0.0", 0)
    with at.socket:
        assert str(at) == f"http://0.0.0.0:{at.port}/ (Ctrl-C ends it; other machines can reach it)"


def test_without_the_extra_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeloom.web.request.find_spec", lambda name: None)
    assert called("serve").refusal == (
        "pipeloom: serve needs starlette and uvicorn: pip install 'pipeloom[web]' "
        "(in a checkout: pip install '.[web]')"
    )


def test_ctrl_c_ends_a_server_that_solves() -> None:
    with serving() as other:
        assert next(other.events(other.begin(**LONG)))
