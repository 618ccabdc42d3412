"""Certificates: the argument for a schedule's lower bound, for others to check."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pipeloom.ir.errors import InputError
from pipeloom.ir.formats.certificate import CERTIFICATE
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.verify.certificate_rows import UNPROVEN
from pipeloom.solver.certificate import certify
from pipeloom.solver.core.stopping import NEVER, StoppingCriterion
from pipeloom.solver.core.tolerances import CLOSED

from .inputs.problem_setup import ProfileSource, with_remat

SECONDS = 10.0


def certificate(schedule: Schedule, should_stop: StoppingCriterion = NEVER) -> dict[str, Any]:
    """See :meth:`.answer.Answer.certificate`."""
    found = certify(schedule, SECONDS, should_stop)
    if found is None:
        raise InputError(
            "certificate: none yet where activations may be recomputed or offloaded, ops overlap, "
            "or the schedule has no lower bound"
        )
    return {
        "format": CERTIFICATE,
        "version": 1,
        "objective": schedule.problem.objective.value,
        "lower_bound": found.lower_bound,
        "argument": found.argument,
    }


def check_certifiable(source: ProfileSource, recompute: str, offload: str) -> None:
    """Raises InputError where no schedule of the profile can have a certificate."""
    layers = None if source.has_stages else source.layers
    given = source.stages if layers is None else replace(layers.cluster, stages=layers.layers)
    profile = with_remat(given, recompute, offload, source.where)
    for stage in profile.stages:
        for key, without in UNPROVEN.items():
            if getattr(stage, key) not in (None, ()):
                raise InputError(
                    f"certificate: expected stages without {key} in {source.where}, as no bound "
                    f"with them has one yet{f'; {without} plans so' * bool(without)}"
                )


def shortfall(found: dict[str, Any], schedule: Schedule) -> str | None:
    """How much less a certificate proves than the schedule's report claims, in words."""
    claimed = schedule.report.lower_bound if schedule.report else None
    if claimed is None or found["lower_bound"] >= claimed / (1 + CLOSED):
        return None
    return (
        f"proves {found['lower_bound']:.6g} only of the lower bound {claimed:.6g}, whose argument "
        "has no certificate yet"
    )
