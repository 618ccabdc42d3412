"""Checks that each rank holds no more activations than its limit, at any moment."""

from __future__ import annotations

from collections.abc import Iterator

from .schedule_facts import Facts, Run

MEMORY = 1e-9  # relative, of the sum of M_B and M_W


def verify_memory(facts: Facts) -> Iterator[str]:
    """At every moment the activations on a rank are within its limit."""
    for rank, row in enumerate(facts.order):
        limit = facts.limit[rank]
        for run, held in held_at(facts, row):
            if run.kind in ("F", "R", "L") and held > limit + MEMORY * max(limit, held):
                yield (
                    f"rank {rank} holds {held:.9g} from {run.start:.9g}, when {run} (op {run.at}) "
                    f"starts, more than its memory limit {limit:.9g}"
                )
                break  # what follows on this rank says the same again


def held_at(facts: Facts, row: list[Run]) -> Iterator[tuple[Run, float]]:
    """Each op with its rank's memory from the start of F, R or L on, from the end of others."""
    held = 0.0
    again = {(run.stage, run.microbatch) for run in row if run.kind == "R"}
    for run in row:
        stage = facts.at(run.stage, run.microbatch)
        recomputed = (run.stage, run.microbatch) in again
        m_r = stage.m_r if recomputed and stage.m_r is not None else stage.m_b
        m_o = stage.m_o or 0.0
        held += {
            "F": m_r,
            "R": stage.m_b - m_r,
            "O": m_o - stage.m_b,
            "L": stage.m_b - m_o,
            "B": stage.m_w - stage.m_b,
            "W": -stage.m_w,
            "BW": -stage.m_b,
        }[run.kind]
        yield run, held
