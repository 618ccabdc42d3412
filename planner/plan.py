"""``plan``: from a model and a cluster to the best configurations, with a lower bound on all
configurations."""

from __future__ import annotations

from typing import Any

from .configurations.plans import best_plan
from .configurations.scaling import scaled
from .requests.fields import takes
from .requests.plans import PlanRequest


@takes(PlanRequest)
def plan(request: PlanRequest) -> Any:
    """Find the best configurations of ``model`` on ``cluster``, with step times as ``predict``
    calculates them.

    Returns a :class:`.configurations.plans.Plan`. If ``scale`` is given, a list of numbers of GPUs,
    returns a :class:`.configurations.scaling.Scaling` with the best plan for each number. Then
    ``global_batch`` is for the smallest number of GPUs and grows with the number, and time and work
    limits apply to each number of GPUs.

    ``model``: a preset's name, or a mapping or file with the keys of Hugging Face's
    ``config.json``. ``cluster``: a preset's name, a file or an object; by default, the default
    cluster of the GPU ``gpu``.

    ``gpus`` (unless ``scale`` is given) and ``global_batch`` are required. ``tp``, ``pp``, ``vp``,
    ``dp``, ``cp``, ``ep``, ``etp``, ``micro_batch``, ``recompute``, ``sharding``,
    ``layers_per_stage`` and ``schedule`` are chosen if they are not given; every other setting of
    the training run has its given or default value, as in ``predict``. ``headroom``: memory that
    plans leave free on each device, in bytes or as ``"4GB"``.

    ``time_limit``: seconds, 45 by default. ``work_limit``: a limit in millions of simulated ops in
    total, which replaces the time limit, so that the result is the same on every machine.
    ``workers`` and ``scheduler``: as in :func:`pipeloom.sweep`; schedules of several configurations
    are searched in parallel. ``progress`` is called with each event; ``str(event)`` is a line of
    text. When ``should_stop`` returns true, the best result so far is returned.

    Raises InputError for invalid input, with one line per fault, and InfeasibleError if nothing
    fits, with the amount of memory that is lacking.
    """
    if request.scale:
        return scaled(request)
    return best_plan(request)
