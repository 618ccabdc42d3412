"""Fixtures of tests that launch processes, or are the only rank themselves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pipeloom.runtime.launch import processes
from tests.support.launched import the_only_rank

# each rank would import them, for a second
processes.PRELOADED = ("pytest", "tests.support.small_gpt", *processes.PRELOADED)


@pytest.fixture
def here() -> Iterator[None]:
    with the_only_rank():
        yield
