"""Packed sequences of unlike lengths, with a new program each step, train as in one process."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np

import pipeloom
from examples.packed import REFERENCE
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.runtime.launch.processes import launch
from tests.distributed.cases.packed import Step, trained

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
    profile = Profile((StageProfile(1.0, 1.0, 1.0),) * 2 * RANKS, RANKS)
    wrong = pipeloom.compile(pipeloom.build("zb-v", profile, 4))
    given = steps([4, 5, 4])
    given.append((deepcopy(given[-1][0]), *given[-1][1:]))
    found = launch(trained, RANKS, (given, wrong), timeout=200, message_timeout=60)
    for each in found.values():
        assert each["apart"] <= 1e-12
        assert each["losses"] <= 1e-12
        assert each["transports"] == 1
        elsewhere, none = each["told"]
        assert elsewhere.startswith("program: expected its stages on ranks [[0], [1], [2]]")
        assert none.endswith("program: expected a Program, got str")
