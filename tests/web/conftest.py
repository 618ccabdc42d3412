from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("starlette", reason="the extra web is not installed")
pytest.importorskip("uvicorn", reason="the extra web is not installed")

from tests.support.served import Served, serving


@pytest.fixture(scope="session")
def server() -> Iterator[Served]:
    """A server for all tests."""
    with serving() as served:
        yield served
