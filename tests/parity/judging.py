"""What a test asks of a pinned case; all that run together are trained once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch

from .cases import Case
from .checking import Outcome, checked, group_of


def judge(case: Case, cases: Sequence[Case]) -> None:
    """Fails where the case, one of these, does not train as in one process."""
    torch.set_num_threads(1)
    outcome = _outcomes(tuple(c for c in cases if group_of(c) == group_of(case)))[case]
    assert outcome == Outcome(), f'python -m tests.parity "{case}": {outcome}'


@cache
def _outcomes(cases: tuple[Case, ...]) -> dict[Case, Outcome]:
    return dict(checked(cases))
