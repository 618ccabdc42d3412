"""Two copies of the weights: whether ``--placement auto`` tries them, and the notes on them."""

from __future__ import annotations

from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.units import counted

BIDIRECTIONAL = "bidirectional"
KEPT = ("weight_bytes", "grad_bytes", "optimizer_bytes")  # held by a stage for the whole iteration


def why_one_way(profile: Profile, microbatches: int) -> str | None:
    """Return why microbatches cannot go in both directions, or None if they can."""
    if profile.unlike:
        return "needs microbatches that are alike"
    if profile.ranks % 2:
        return f"needs an even number of ranks, not {profile.ranks}"
    if profile.num_stages != profile.ranks:
        ranks = counted(profile.ranks, "rank")
        return f"needs one stage per rank, not {profile.num_stages} on {ranks}"
    if microbatches < 2:
        return "needs two microbatches, one each way"
    return None


def why_unchecked(profile: Profile) -> str | None:
    """Return why it cannot be checked whether two copies of the weights fit in memory.

    Returns None if it can be checked: the profile gives ``device_memory`` and all sizes.
    """
    unknown = ["device_memory"] if profile.device_memory is None else _unknown(profile)
    if not unknown:
        return None
    return (
        f"two copies of the weights may not fit (no {', '.join(unknown)} in the profile): --copies "
        "2 tries them"
    )


def assumed(problem: Problem) -> str:
    """Return the note for the table of placements on what is assumed about this placement.

    ``problem``: a problem with the placement. Returns an empty string if nothing is assumed.
    """
    if problem.placement.passing is not Passing.MIXED:
        return ""
    copies = f"two copies of the weights{_counted_or_not(problem.profile)}"
    return f"{copies}, summing their gradients takes no time here"


def _counted_or_not(profile: Profile) -> str:
    if profile.device_memory is None:
        return " (not counted: no device_memory)"
    unknown = _unknown(profile)
    return f" (unknown {', '.join(unknown)} counted as 0)" if unknown else ""


def _unknown(profile: Profile) -> list[str]:
    return [key for key in KEPT if any(getattr(s, key) is None for s in profile.stages)]
