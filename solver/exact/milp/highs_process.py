"""Solves an MPS file by the HiGHS that ortools brings: a script, as that solve cannot be stopped.

``highs_process.py MODEL SECONDS PARAMETERS SOLUTION``: a time limit of 0 is none. The solution is a
JSON object: ``status``, ``bound`` (null where there is none) and ``values`` by name.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import Any


def main(model: str, seconds: str, parameters: str, solution: str) -> None:
    model_builder = import_module("ortools.linear_solver.python.model_builder")  # half typed
    milp, solver = model_builder.Model(), model_builder.Solver("highs")
    if not milp.import_from_mps_file(model):
        raise SystemExit(f"{model}: not read")
    if float(seconds) > 0:
        solver.set_time_limit_in_seconds(float(seconds))
    solver.set_solver_specific_parameters(parameters)
    status = solver.solve(milp)
    found: dict[str, Any] = {"status": status.name, "bound": None, "values": {}}
    if status in {model_builder.SolveStatus.OPTIMAL, model_builder.SolveStatus.FEASIBLE}:
        bound = float(solver.best_objective_bound)
        found["bound"] = bound if isfinite(bound) else None
        variables = milp.get_variables()
        values = solver.values(variables).tolist()
        found["values"] = {v.name: value for v, value in zip(variables, values, strict=True)}
    Path(solution).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
