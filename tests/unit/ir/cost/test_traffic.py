from __future__ import annotations

import pytest

from pipeloom.ir.cost.traffic import traffic
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.solver.families import build_family
from pipeloom.solver.weight_passing.replicate import replicate

STAGE = StageProfile(1.0, 1.0, 1.0, activation_bytes=3.0, weight_bytes=5.0, grad_bytes=7.0)


def test_activations_go_both_ways_between_neighbours() -> None:
    sent = traffic(build_family("1f1b", Profile((STAGE,) * 3, 3), 4))
    assert sent.tolist() == [[0, 12, 0], [12, 0, 12], [0, 12, 0]]


def test_chunks_go_round() -> None:
    sent = traffic(build_family("interleaved-1f1b:2", Profile((STAGE,) * 4, 2), 4))
    # three boundaries: 0 to 1, 1 to 0, 0 to 1; forwards and back
    assert sent.tolist() == [[0, 36], [36, 0]]


def test_what_one_rank_has_does_not_travel() -> None:
    assert traffic(build_family("interleaved-1f1b:3", Profile((STAGE,) * 3, 1), 4)).tolist() == [
        [0]
    ]


def test_weights_and_gradients_by_their_own_sizes() -> None:
    schedule = build_family("weipipe-interleave", Profile((STAGE,) * 2, 2), 1)
    # one microbatch on rank 0: both copies of stage 1 come, its gradient goes home
    assert traffic(schedule).tolist() == [[0, 7], [10, 0]]


@pytest.mark.parametrize("grad_bytes", [None, 5.0])
def test_unknown_sizes(grad_bytes: float | None) -> None:
    stage = StageProfile(1.0, 1.0, 1.0, weight_bytes=5.0, grad_bytes=grad_bytes)
    profile = Profile((stage,) * 2, 2)
    assert traffic(build_family("weipipe-interleave", profile, 1)).tolist() == [[0, 5], [10, 0]]
    assert not traffic(build_family("1f1b", profile, 4)).any()


def test_gradients_of_replicas_are_summed_round_a_ring() -> None:
    schedule = build_family("weipipe-interleave", Profile((STAGE,) * 3, 3), 3)
    inner = traffic(schedule) - traffic(replicate(schedule, [0]))
    assert inner[0, 2] == sum(
        {"weight": 5, "gradient": 7}[t.kind.value]
        for t in schedule.transfers
        if (t.stage, t.source, t.target) == (0, 0, 2)
    )
    all_replicated = traffic(replicate(schedule, range(3)))
    share = 3 * 2 * 2 / 3 * 7
    ring = [[0, share, 0], [0, 0, share], [share, 0, 0]]
    assert all_replicated.tolist() == [pytest.approx(row) for row in ring]
