"""The list scheduler with recomputation, if it serves the problem."""

from __future__ import annotations

import numpy as np

from pipeloom.ir.model.problem import Problem

from ..construct.list_parameters import recomputed
from ..core.linear_instance import each_alone
from ..core.relaxations import recomputable
from ..search.list_search import ListTuner


def remat_list_tuner(problem: Problem, rng: np.random.Generator) -> ListTuner | None:
    """A parameter search; None if a rank has several stages, or nothing is to be recomputed."""
    able = each_alone(problem) and problem.limited and bool(recomputable(problem).any())
    return ListTuner(problem, rng, recomputed(problem)) if able else None
