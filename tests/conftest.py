"""Fixtures of tests in all folders."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

os.environ["OMP_NUM_THREADS"] = "1"  # torch's, here and on ranks: more would wait for each other

settings.register_profile("ordinary", max_examples=40, deadline=None)
settings.register_profile("thorough", max_examples=400, deadline=None)
settings.load_profile("ordinary")


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Shells start what runs in the background with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def here() -> Iterator[None]:
    """This process is the only rank of what runs: none is started."""
    from tests.support.launched import the_only_rank  # imports torch, for seconds

    with the_only_rank():
        yield
