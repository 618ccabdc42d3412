"""Runs PuLP's CBC as a process that can be stopped and leaves no files."""

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

_POLL = 0.05  # seconds between two calls of should_stop
_GRACE = 3.0  # seconds that CBC has to end by itself
_BOUND = re.compile(r"^Lower bound:\s+(\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of CBC. ``values``: of each variable in the best solution; empty if there is none.

    ``bound``: on the objective, None if CBC reports none. ``complete``: CBC has finished.
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
    """Minimize ``lp`` for at most ``seconds``, from the solution ``start`` unless that is empty."""
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
                process.kill()  # has no effect if it has ended
                process.wait()
        return _read((path / "log").read_text(errors="replace"), path / "solution.sol")


def _write_start(path: Path, start: Mapping[str, float]) -> None:
    lines = [f"{i} {name} {value!r} 0" for i, (name, value) in enumerate(start.items())]
    path.write_text("\n".join(["Stopped on time - objective value 0", *lines, ""]))


def _wait(process: subprocess.Popen[bytes], seconds: float, should_stop: StoppingCriterion) -> None:
    """Wait for CBC; interrupt it if ``should_stop`` returns true or its time is long over."""
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
    # without an integer solution the file has the solution of the relaxation
    found = bool(status) and not infeasible and "no integer solution" not in status
    if status.startswith("Optimal"):
        bound: float | None = float(status.split()[-1])
    else:
        match = _BOUND.search(log)
        bound = float(match[1]) if match else None
    complete = infeasible or status.startswith("Optimal")
    return Outcome(_values(text) if found else {}, bound, infeasible, complete)


def _values(text: str) -> dict[str, float]:
    """Read the solution file.

    After a status line it has index, name, value and reduced cost of each variable.
    """
    rows = [line.replace("**", "").split() for line in text.splitlines()[1:]]
    return {row[1]: float(row[2]) for row in rows if len(row) == 4}
