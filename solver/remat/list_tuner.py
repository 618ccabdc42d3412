"""The list scheduler with recomputation, if it serves the problem."""

from __future__ import annotations

import numpy as np

from pipeloom.ir.model.problem import Problem

from ..construct.list_parameters import recomputed
from ..core.linear_instance import LinearInstance
from ..core.relaxations import plain, recomputable
from ..search.list_search import ListTuner


def remat_list_tuner(problem: Problem, rng: np.random.Generator) -> ListTuner | None:
    """A parameter search; None if a rank has several stages, or nothing is to be recomputed."""
    linear = LinearInstance.of(plain(problem)) is not None
    able = linear and problem.limited and bool(recomputable(problem).any())
    return ListTuner(problem, rng, recomputed(problem)) if able else None
