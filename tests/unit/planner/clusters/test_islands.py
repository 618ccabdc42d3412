from __future__ import annotations

import pytest

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.links import Link
from pipeloom.planner.clusters.islands import islands

FAST, SLOW = Link(0.0, 100.0), Link(1.0, 1.0)


def test_consecutive_ranks_share_an_island() -> None:
    cluster = islands(4, 2, FAST, SLOW)
    assert cluster.link_delays(1e6).tolist() == [
        [0.0, 0.01, 2.0, 2.0],
        [0.01, 0.0, 2.0, 2.0],
        [2.0, 2.0, 0.0, 0.01],
        [2.0, 2.0, 0.01, 0.0],
    ]
    assert cluster.ranks == cluster.num_stages == 4


def test_an_island_has_one_wire_out_and_one_in() -> None:
    links = islands(4, 2, FAST, SLOW).links
    assert links is not None
    assert set(links.wires(0, 2, 4)) & set(links.wires(1, 3, 4)) == {"group 0", "group 3"}
    assert not set(links.wires(0, 2, 4)) & set(links.wires(2, 0, 4))  # both ways at once
    assert links.wires(0, 1, 4) == ("0 to 1",)


@pytest.mark.parametrize("size", [0, 3, 8])
def test_islands_are_equal(size: int) -> None:
    with pytest.raises(InputError, match=f"island: expected a divisor of the 4 ranks, got {size}"):
        islands(4, size, FAST, SLOW)
