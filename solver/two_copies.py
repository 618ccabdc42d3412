"""What ``--placement auto`` says of schedules with two copies of the weights, and why there may be none."""

from __future__ import annotations

from pipeloom.ir.problem import Passing, Problem
from pipeloom.ir.profile import Profile

BIDIRECTIONAL = "bidirectional"


def why_one_way(profile: Profile, microbatches: int) -> str | None:
    """Why the microbatches cannot go both ways; None where they can."""
    if profile.ranks % 2:
        return f"needs an even number of ranks, not {profile.ranks}"
    if profile.num_stages != profile.ranks:
        return f"needs one stage a rank, not {profile.num_stages} on {profile.ranks} rank(s)"
    if microbatches < 2:
        return "needs two microbatches, one each way"
    return None


def assumed(problem: Problem) -> str:
    """What a table has to say of a placement; empty where nothing."""
    if problem.placement.passing is not Passing.MIXED:
        return ""
    copies = f"two copies of the weights{_counted(problem.profile)}"
    return f"{copies}, summing their gradients takes no time here"


def _counted(profile: Profile) -> str:
    if profile.device_memory is None:
        return " (not counted: no device_memory)"
    sizes = ("weight_bytes", "grad_bytes", "optimizer_bytes")
    unknown = [key for key in sizes if any(getattr(s, key) is None for s in profile.stages)]
    return f" (unknown {', '.join(unknown)} counted as 0)" if unknown else ""
