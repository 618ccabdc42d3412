"""The port of a script of torch.distributed.pipelining; tests/distributed runs both."""

from benchmarks.port import MOST_CHANGED
from benchmarks.port.compare import changed_lines


def test_at_most_eight_lines_change() -> None:
    assert 0 < changed_lines() <= MOST_CHANGED
