"""The port of a script of torch.distributed.pipelining, in small."""

from benchmarks.port import compared
from benchmarks.port.compare import MOST_CHANGED, changed_lines


def test_at_most_eight_lines_change() -> None:
    assert 0 < changed_lines() <= MOST_CHANGED


def test_both_scripts_have_the_same_losses() -> None:
    (row,) = compared(["Interleaved1F1B"], 2)
    assert len(row["losses"]) == 2
    assert row["losses"] == sorted(row["losses"], reverse=True)
    assert row["losses_equal"]
    assert row["ours_ms"] > 0
    assert row["torch_ms"] > 0
