"""What each rank that these tests launch finds imported."""

from __future__ import annotations

from tests.support.inside import processes

# each rank would import them, for a second
processes.PRELOADED = ("pytest", "tests.support.small_gpt", *processes.PRELOADED)
