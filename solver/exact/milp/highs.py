"""The MILP of :mod:`.model` solved by HiGHS, in a process that ends when it is told to.

HiGHS tells no bound where it ends without a solution; the known one stands then.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from functools import partial
from math import isfinite
from pathlib import Path

import pulp

from ...core.stopping import StoppingCriterion, TimeLimit
from . import highs_process
from .cbc import Outcome
from .cbc_process import own_folder, started
from .model import MilpLimits, solved_by

_POLL = 0.05  # seconds between two looks at should_stop
_GRACE = 3.0  # seconds that HiGHS gets to end by itself


def run_highs(
    lp: pulp.LpProblem,
    *,
    start: Mapping[str, float],
    limits: MilpLimits,
    should_stop: StoppingCriterion,
) -> Outcome:
    """Minimises ``lp``. ``start`` is not looked at: its cost bounds the model's already."""
    with own_folder() as path:
        lp.writeMPS(str(path / "model.mps"))
        seconds = limits.seconds if isfinite(limits.seconds) else 0.0
        script = ["-P", highs_process.__file__]
        arguments = ["model.mps", f"{seconds:.2f}", _parameters(limits), "solution.json"]
        with (path / "log").open("wb") as log:
            process = started([sys.executable, *script, *arguments], path, log.fileno())
            try:
                too_long = TimeLimit(limits.seconds + _GRACE)
                while process.poll() is None and not too_long() and not should_stop():
                    time.sleep(_POLL)
            finally:
                process.kill()
                process.wait()
        log_text = (path / "log").read_text(errors="replace")
        return _read(process.returncode, log_text, path / "solution.json")


def _parameters(limits: MilpLimits) -> str:
    values: dict[str, float | int] = {
        "mip_rel_gap": 0.0,
        "mip_abs_gap": 0.0,
        "mip_feasibility_tolerance": limits.integer,
        "primal_feasibility_tolerance": limits.primal,
        "dual_feasibility_tolerance": limits.primal,
        "random_seed": limits.seed,
        "threads": 1,
    }
    if limits.nodes is not None:
        values["mip_max_nodes"] = limits.nodes
    return ",".join(f"{name}={value!r}" for name, value in values.items())


def _read(code: int, log: str, solution: Path) -> Outcome:
    if not solution.exists():
        assert code <= 0, log  # killed: it has said nothing
        return Outcome({}, None, False, False)
    found = json.loads(solution.read_text(encoding="utf-8"))
    infeasible = found["status"] == "INFEASIBLE"
    complete = infeasible or found["status"] == "OPTIMAL"
    return Outcome(found["values"], found["bound"], infeasible, complete)


solve = partial(solved_by, run_highs)
