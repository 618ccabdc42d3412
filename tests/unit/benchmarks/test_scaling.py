"""The shape of scaling curves, and that a wrong one is found."""

from __future__ import annotations

from benchmarks import of_part
from benchmarks.plans.curves import CURVES, SCHEMES, STAGES, faults
from benchmarks.recording import Record


def test_what_is_recorded_has_the_published_shape() -> None:
    rows = Record.of("plans").rows
    curves = of_part(rows, CURVES)
    assert len(curves) == 4 * len(SCHEMES)
    assert list(faults(curves, of_part(rows, STAGES))) == []
    assert list(faults(curves, of_part(rows, STAGES)[::-1])) != []
