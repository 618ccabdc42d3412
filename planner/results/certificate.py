"""Certificates: the argument for a schedule's lower bound, in a form that is verified independently
of the solver."""

from __future__ import annotations

from typing import Any

from pipeloom.ir.errors import InputError
from pipeloom.ir.formats.certificate import CERTIFICATE
from pipeloom.ir.model.schedule import Schedule
from pipeloom.solver.certificate import certify
from pipeloom.solver.core.tolerances import CLOSED

from ..inputs.problem_setup import ProfileSource


def certificate(schedule: Schedule) -> dict[str, Any]:
    """Return the certificate of a schedule's lower bound as a JSON object: see
    :meth:`.result.Result.certificate`."""
    found = certify(schedule)
    if found is None:
        raise InputError(
            "certificate: none yet where ops overlap, weights are updated by microbatch, or the "
            "schedule has no lower bound"
        )
    document = {
        "format": CERTIFICATE,
        "version": 1,
        "objective": schedule.problem.objective.value,
        "lower_bound": found.lower_bound,
        "argument": found.argument,
    }
    less = shortfall(document, schedule) is not None
    return document | ({"claimed": schedule.known_report.lower_bound} if less else {})


def check_certifiable(source: ProfileSource) -> None:
    """Raise InputError if, for this profile, lower bounds cannot have certificates."""
    if any(stage.t_fb is not None for stage in source.pieces):
        raise InputError(
            f"certificate: expected no t_fb in {source.where}: none yet where ops overlap"
        )


def shortfall(found: dict[str, Any], schedule: Schedule) -> str | None:
    """Return, in words, by how much the bound of the certificate ``found`` is below the one in the
    schedule's report; None if it is not below."""
    claimed = schedule.report.lower_bound if schedule.report else None
    if claimed is None or found["lower_bound"] >= claimed / (1 + CLOSED):
        return None
    proven, cost = found["lower_bound"], schedule.known_timing.cost(schedule.problem.objective)
    return (
        f"proves {proven:.6g} only of the lower bound {claimed:.6g} (a gap of "
        f"{1 - proven / cost:.2%}, not {1 - claimed / cost:.2%}), whose argument has no "
        "certificate yet"
    )
