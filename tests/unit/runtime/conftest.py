"""Fixtures of the runtime's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.launched import the_only_rank


@pytest.fixture
def here() -> Iterator[None]:
    """No process is started."""
    with the_only_rank():
        yield
