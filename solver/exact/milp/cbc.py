"""Runs the CBC that PuLP brings: a process that ends when it is told to, and leaves no files."""

from __future__ import annotations

import math
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pulp

from ...core.stopping import StoppingCriterion, TimeLimit
from .cbc_process import own_folder, started

_POLL = 0.05  # seconds between two looks at should_stop
_GRACE = 3.0  # seconds that CBC gets to end by itself
_BOUND = re.compile(r"^Lower bound:\s+(\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """``values``: of each variable in the best solution, empty where there is none.

    ``bound``: on the objective, None where CBC reports none. ``complete``: it came to its end.
    """

    values: Mapping[str, float]
    bound: float | None
    infeasible: bool
    complete: bool


def run_cbc(
    lp: pulp.LpProblem,
    *,
    start: Mapping[str, float],
    seconds: float,
    options: Mapping[str, float | str],
    should_stop: StoppingCriterion,
) -> Outcome:
    """Minimises ``lp`` for at most ``seconds``, from the solution ``start`` where it is not
    empty."""
    with own_folder() as path:
        lp.writeMPS(str(path / "model.mps"))
        command = [pulp.PULP_CBC_CMD.pulp_cbc_path, "model.mps", "-timeMode", "elapsed"]
        if math.isfinite(seconds):
            command += ["-sec", f"{seconds:.2f}"]
        for name, value in options.items():
            command += [f"-{name}", str(value)]
        if start:
            _write_start(path / "start.sol", start)
            command += ["-mips", "start.sol"]
        command += ["-solve", "-printingOptions", "all", "-solution", "solution.sol"]
        with (path / "log").open("wb") as log:
            process = started(command, path, log.fileno())
            try:
                _wait(process, seconds, should_stop)
            finally:
                process.kill()  # no more than a formality where it has ended
                process.wait()
        return _read((path / "log").read_text(errors="replace"), path / "solution.sol")


def _write_start(path: Path, start: Mapping[str, float]) -> None:
    lines = [f"{i} {name} {value!r} 0" for i, (name, value) in enumerate(start.items())]
    path.write_text("\n".join(["Stopped on time - objective value 0", *lines, ""]))


def _wait(process: subprocess.Popen[bytes], seconds: float, should_stop: StoppingCriterion) -> None:
    """Until CBC ends; asked to stop, or well past its time, it is interrupted."""
    too_long = TimeLimit(seconds + _GRACE)
    while process.poll() is None and not too_long() and not should_stop():
        time.sleep(_POLL)
    if process.poll() is None:
        process.send_signal(signal.SIGINT)  # CBC then ends at its next node, with its bound
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            return


def _read(log: str, solution: Path) -> Outcome:
    assert "Current model not valid" not in log, log
    text = solution.read_text() if solution.exists() else ""
    status = text.partition("\n")[0]
    infeasible = "infeasible" in status.lower()
    # without an integer solution the file holds the relaxation's
    found = bool(status) and not infeasible and "no integer solution" not in status
    if status.startswith("Optimal"):
        bound: float | None = float(status.split()[-1])
    else:
        match = _BOUND.search(log)
        bound = float(match[1]) if match else None
    complete = infeasible or status.startswith("Optimal")
    return Outcome(_values(text) if found else {}, bound, infeasible, complete)


def _values(text: str) -> dict[str, float]:
    """The solution file: a line of status, then index, name, value and reduced cost of each."""
    rows = [line.replace("**", "").split() for line in text.splitlines()[1:]]
    return {row[1]: float(row[2]) for row in rows if len(row) == 4}
