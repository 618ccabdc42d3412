"""The list scheduler with recomputation, for the problems to which it applies."""

from __future__ import annotations

import numpy as np

from pipeloom.ir.model.problem import Problem

from ..construct.list_parameters import recomputed
from ..core.linear_instance import each_alone
from ..core.relaxations import recomputable
from ..search.list_search import ListTuner


def remat_list_tuner(problem: Problem, rng: np.random.Generator) -> ListTuner | None:
    """Return a search for the list scheduler's parameters that uses recomputation.

    Returns None if a rank has several stages, no memory limit is given, or no stage is
    recomputable.
    """
    able = each_alone(problem) and problem.limited and bool(recomputable(problem).any())
    return ListTuner(problem, rng, recomputed(problem)) if able else None
