"""What is worked out of a schedule's transfers once."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence

from pipeloom.ir.model.schedule import Transfer, TransferKind, Transfers, once

PLAN = Transfers([Transfer(TransferKind.WEIGHT, 0, 0, 0, 1, 0, 0)])


def counting(step: int) -> Callable[[Sequence[Transfer]], int]:
    def count(transfers: Sequence[Transfer]) -> int:
        return step * len(transfers)

    return count


def test_functions_of_one_name_have_results_of_their_own() -> None:
    assert [once(PLAN, counting(step)) for step in (1, 2)] == [1, 2]


def test_a_copy_is_equal_and_works_it_out_again() -> None:
    once(PLAN, len)
    copy = pickle.loads(pickle.dumps(PLAN))
    assert copy == PLAN
    assert vars(copy) == {}
