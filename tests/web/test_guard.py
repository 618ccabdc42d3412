"""Requests that are refused before they reach a route."""

from __future__ import annotations

import pytest

from pipeloom.web import application
from tests.support.served import asked

JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost:8080", "[::1]:8080", "127.0.0.9"])
def test_loopback_hosts_are_answered(host: str) -> None:
    answer = asked(application(), headers={"host": host})
    assert answer.status == 200
    assert answer.headers["x-frame-options"] == "DENY"
    assert "default-src 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize(
    "host", ["evil.example", "10.0.0.1:8080", "", "127.0.0.1.evil.example", "[", "localhost@evil"]
)
def test_other_hosts_are_refused(host: str) -> None:
    answer = asked(application(), headers={"host": host})
    assert answer.status == 421
    assert answer.faults == [("Host", f"expected the address of this server, got {host!r}")]


def test_a_server_for_other_machines_is_called_by_its_name_or_an_address() -> None:
    app = application("0.0.0.0")
    hosts = ["0.0.0.0:8080", "192.168.1.5:8080", "localhost:8080", "evil.example"]
    assert [asked(app, headers={"host": host}).status for host in hosts] == [200, 200, 200, 421]
    assert asked(application("MyBox"), headers={"host": "mybox:8080"}).status == 200


@pytest.mark.parametrize("path", ["/api/solves", "/api/profile", "/api/solves/x/stop"])
@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:9999"])
def test_other_origins_are_refused(path: str, origin: str) -> None:
    answer = asked(application(), "POST", path, JSON | {"origin": origin})
    assert answer.status == 403
    assert answer.faults[0][0] == "Origin"


def test_the_page_can_be_opened_from_another_site_but_not_read_by_it() -> None:
    other = {"sec-fetch-site": "cross-site"}
    opened = asked(application(), headers=other | {"sec-fetch-mode": "navigate"})
    read = asked(application(), "GET", "/", other | {"sec-fetch-mode": "no-cors"})
    assert (opened.status, read.status) == (200, 403)


def test_forms_cannot_post() -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert asked(application(), "POST", "/api/solves", form).status == 415
    assert asked(application(), "POST", "/api/solves").status == 415


def test_a_large_body_is_refused_by_its_announced_and_by_its_real_size() -> None:
    announced = JSON | {"content-length": str(2**30)}
    assert asked(application(), "POST", "/api/solves", announced).status == 413
    chunks = [b" " * 2**20] * 17
    answer = asked(application(), "POST", "/api/solves", JSON, chunks)
    assert answer.status == 413
    assert answer.faults == [("body", "expected at most 16777216 bytes")]


def test_a_slow_body_is_refused() -> None:
    app = application(seconds=0.1)
    answer = asked(app, "POST", "/api/solves", JSON, [b'{"profile"'], complete=False)
    assert answer.status == 408
    assert answer.faults == [("body", "expected all of it within 0.1 s")]
