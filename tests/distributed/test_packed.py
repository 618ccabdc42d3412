"""Packed sequences of unlike lengths, with a new program each step, train as in one process."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np

import pipeloom
from examples.packed import REFERENCE
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.runtime.launch.processes import launch
from tests.distributed.cases.packed import Step, Told, trained_and_tuned

RANKS = 3


def steps(microbatches: list[int]) -> list[Step]:
    profile = Profile((StageProfile(1.0, 1.0, 0.8, 1.0, 0.5),) * RANKS, RANKS, 0.05)
    found = list[Step]()
    for seed, count in enumerate(microbatches):
        lengths = np.random.default_rng(seed).integers(3, 40, 11).tolist()
        document: dict[str, Any] = {
            "format": "pipeloom.lengths", "version": 1, "lengths": lengths,
            "reference_length": REFERENCE, "attention": 0.3,
        }  # fmt: skip
        packing = pipeloom.pack(document, profile, count, work_limit=0.2, seed=seed)
        found.append((pipeloom.compile(packing.schedules[0]), packing.replicas[0], lengths))
    return found


def test_packed_sequences_with_a_new_program_each_step() -> None:
    """Given to ``step``; by ``run``, the batch that was packed; by ``tune``, which begins with a
    packed program, and whose costs follow what it measures."""
    profile = Profile((StageProfile(1.0, 1.0, 1.0),) * 2 * RANKS, RANKS)
    wrong = pipeloom.compile(pipeloom.build("zb-v", profile, 4))
    given = steps([4, 5, 4])
    given.append((deepcopy(given[-1][0]), *given[-1][1:]))
    repacker = Told(given[0][0], (), 0.1, 0)
    args = given, wrong, repacker
    found = launch(trained_and_tuned, RANKS, args, timeout=200, message_timeout=60)
    for each, (result, off) in found.values():
        assert off <= 1e-12
        assert [trial.steps for trial in result.trials] == [2, 4]
        assert each["apart"] <= 1e-12
        assert each["ran"] <= 1e-12
        assert each["losses"] <= 1e-12
        assert each["transports"] == 1
        elsewhere, none, apart = each["told"]
        assert elsewhere.startswith("program: expected its stages on ranks [[0], [1], [2]]")
        assert none.endswith("program: expected a Program, got str")
        assert "program: expected one on all ranks, got" in apart
    learnt = found[0][1][0]
    assert learnt.attention is not None
    before, after = given[0][0].schedule.problem.profile, learnt.program.schedule.problem.profile
    assert before.packing is not None
    assert after.packing == replace(before.packing, profile=after.packing.profile)
    assert after.unpacked.stages != before.unpacked.stages
    assert after.stages != before.stages
