"""Where weights travel, gradients are one process's, on two, three and four ranks."""

from __future__ import annotations

import pytest

from tests.distributed.launched import launched
from tests.distributed.weight_cases import BOUNDS, Case, cases, run_cases
from tests.models import TinyTransformer

ALL = [case for ranks in (2, 3, 4) for case in cases(ranks)]
outcomes = launched(cases, run_cases)


@pytest.mark.parametrize("case", ALL, ids=str)
def test_gradients_are_one_processs(case: Case) -> None:
    rows = outcomes(case.ranks)[case]
    source = TinyTransformer(case.dtype, uneven=case.uneven)
    modules = [make() for make in source.stages(case.stages or case.ranks)]
    for rank, row in enumerate(rows):
        # rank s mod P owns stage s
        assert sorted(row.differences) == sorted(
            f"{s}.{name}"
            for s in range(rank, len(modules), case.ranks)
            for name, _ in modules[s].named_parameters()
        )
        assert max(row.differences.values()) <= BOUNDS[case.dtype]
        assert row.losses == pytest.approx(row.expected_losses, rel=BOUNDS[case.dtype])


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_activations_of_one_microbatch_are_held_at_a_time(ranks: int) -> None:
    """The first BW of a microbatch comes before the first F of the next one but one."""
    rows = {
        (case.microbatches, str(case.dtype)): [row.peak_memory for row in rows]
        for case, rows in outcomes(ranks).items()
        if case.variant == "published" and case.memory and not case.uneven
    }
    for (count, dtype), peaks in rows.items():
        one = rows[min(n for n, d in rows if d == dtype), dtype][0]
        assert max(peaks) < 1.05 * one, count
