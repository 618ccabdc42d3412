"""The modules of each stage, as torchtitan's ``module_fqns_per_model_part`` takes them.

::

    [["tok_embeddings", "layers.0"], ["layers.1", "norm", "output"]]     one list a stage

A list of lists of strings, which JSON, TOML and Python write alike. Which rank a stage is on
follows from the schedule that torchtitan is told to run, so it is not here. A loss that no module
computes is left out.
"""

from __future__ import annotations

import json

from pipeloom.ir.model.schedule import Schedule

from .stage_layers import named_parts


def write(schedule: Schedule) -> str:
    """One list a stage, on a line of its own. Raises InputError where stages do not know their
    layers."""
    parts = [
        [module for layer in part for module in layer.modules]
        for part in named_parts(schedule, "torchtitan")
    ]
    return "[\n" + ",\n".join(f"  {json.dumps(part)}" for part in parts) + "\n]\n"


def write_toml(schedule: Schedule) -> str:
    """The same as what torchtitan's TOML files have it in."""
    parts = write(schedule).rstrip()
    return (
        f"[parallelism]\npipeline_parallel_degree = {schedule.problem.ranks}\n"
        f"module_fqns_per_model_part = {parts}\n"
    )
