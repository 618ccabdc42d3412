"""Table 8 of the Zero Bubble paper: what is built has the published bubble rates."""

from __future__ import annotations

import pytest

from benchmarks.published.table8 import Row, load_rows

SHORT = [row for row in load_rows() if row.microbatches < 96]  # the benchmark does all nine


@pytest.mark.parametrize("family", ["1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v"])
@pytest.mark.parametrize("row", SHORT, ids=str)
def test_bubble_rates_to_four_digits(row: Row, family: str) -> None:
    assert round(next(iter(row.rates(family).values())), 4) == row.published[family]


@pytest.mark.parametrize("row", SHORT, ids=str)
def test_zb_v_holds_what_1f1b_does(row: Row) -> None:
    timings = [row.schedule(family).timing for family in ("zb-v", "1f1b")]
    peaks = [max(timing.peak_memory) for timing in timings if timing is not None]
    assert peaks[0] <= peaks[1] == 2 * row.ranks * row.chunk.m_b
