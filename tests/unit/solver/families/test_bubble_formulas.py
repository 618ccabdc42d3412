"""The published bubble rates beside those of what is built.

For P equal stages, T_F = T_B = T_W, no delays, P dividing M and M > P. Sources: gpipe, 1f1b (dapple
alike), zb-h1, zb-h2 and zb-v Qi et al., 2024; interleaved-1f1b (grouped alike) Narayanan et al.,
2021; looped-bfs Lamy-Poirier, 2023; weipipe-interleave Lin et al., 2025. Those of wzb1 and wzb2
follow from when their ops run (:mod:`pipeloom.solver.families.weights.ring`).
"""

from __future__ import annotations

import pytest

from pipeloom.ir.model.problem import Objective
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.solver.families import build_family

# a rank's idle time in the makespan, in units of P - 1 F's; two stages a rank in the second line
IDLE = {
    "gpipe": 3.0, "1f1b": 3.0, "dapple": 3.0, "zb-h1": 1.0,
    "interleaved-1f1b": 1.5, "interleaved-1f1b-grouped": 1.5, "looped-bfs": 1.5,
    "weipipe-interleave": 3.0, "wzb1": 2.0, "wzb2": 1.0,
}  # fmt: skip
NO_BUBBLE = ("zb-h2", "zb-v")  # of the period


@pytest.mark.parametrize(("ranks", "count"), [(1, 3), (2, 4), (4, 8), (4, 20), (8, 24)])
@pytest.mark.parametrize("name", [*IDLE, *NO_BUBBLE])
def test_equal_times_give_the_formula(name: str, ranks: int, count: int) -> None:
    if name == "wzb1" and ranks == 1:
        pytest.skip("wzb1 needs an even number of ranks")
    schedule = build_family(name, Profile((StageProfile(1.0, 1.0, 1.0),) * ranks, ranks), count)
    objective = Objective.PERIOD if name in NO_BUBBLE else Objective.MAKESPAN
    idle = IDLE.get(name, 0.0) * (ranks - 1)
    assert schedule.known_timing.bubble_rate(objective) == pytest.approx(
        idle / (3.0 * count + idle), abs=1e-12
    )
