"""Runs PuLP's CBC in a process that can be stopped and ends with this process.

Its temporary folder remains only if this process is killed by SIGKILL.

PuLP's own interface to CBC waits without asking whether to stop, and does not read CBC's bound.
"""

from __future__ import annotations

import math
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakKeyDictionary

import pulp

from pipeloom.ir.child_processes import tied_to_parent

from ..core.stopping import POLL, StoppingCriterion, TimeLimit

_GRACE = 3.0  # seconds for CBC to end after its time limit, and after an interrupt
_BOUND = re.compile(r"^Lower bound:\s+(\S+)$", re.MULTILINE)
_running: WeakKeyDictionary[subprocess.Popen[bytes], Path] = WeakKeyDictionary()  # folders


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of running CBC once.

    ``values``: the value of each variable in the best solution, by name; empty if no solution was
    found. ``bound``: the lower bound on the objective; None if CBC reports none. ``infeasible``:
    whether CBC reports that there is no solution. ``complete``: whether CBC has proven its result,
    so that more time would not help.
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
    """Minimize ``lp`` for at most ``seconds``, starting from the solution ``start``.

    ``start``: the values of variables, by name. ``options``: the values of options for CBC's
    command line, by name. ``should_stop``: called repeatedly; CBC is interrupted when it returns
    true.
    """
    command = [pulp.PULP_CBC_CMD.pulp_cbc_path, "model.mps", "-timeMode", "elapsed"]
    if math.isfinite(seconds):
        command += ["-sec", f"{seconds:.2f}"]
    for name, value in options.items():
        command += [f"-{name}", str(value)]
    command += ["-mips", "start.sol", "-solve"]
    command += ["-printingOptions", "all", "-solution", "solution.sol"]
    with tempfile.TemporaryDirectory(prefix="pipeloom-cbc-", ignore_cleanup_errors=True) as folder:
        path = Path(folder)
        lp.writeMPS(str(path / "model.mps"))
        rows = [f"{i} {name} {value!r} 0" for i, (name, value) in enumerate(start.items())]
        lines = ["Stopped on time - objective value 0", *rows, ""]
        (path / "start.sol").write_text("\n".join(lines))
        with (path / "log").open("wb") as log:
            # in a session of its own, so that Ctrl-C reaches only this process
            process = subprocess.Popen(
                command,
                cwd=path,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=tied_to_parent(),  # noqa: PLW1509 - only a call into libc
            )
            _running[process] = path
            try:
                _wait(process, seconds, should_stop)
            finally:
                process.kill()  # has no effect if it has ended
                process.wait()
        return _read((path / "log").read_text(errors="replace"), path / "solution.sol")


def end_all() -> None:
    """Kill the CBC processes that this process has started, and delete their folders.

    This is for a process that exits without waiting for its threads. A thread that runs CBC
    otherwise does the same at its end.
    """
    for process, folder in list(_running.items()):
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait(process: subprocess.Popen[bytes], seconds: float, should_stop: StoppingCriterion) -> None:
    """Wait for CBC to end, and interrupt it if that takes too long.

    It does if ``should_stop`` returns true, or if CBC is still running some time after ``seconds``.
    If CBC does not react to the interrupt, it is still running when this function returns.
    """
    too_long = TimeLimit(seconds + _GRACE)
    while process.poll() is None and not too_long() and not should_stop():
        time.sleep(POLL)
    if process.poll() is None:
        process.send_signal(signal.SIGINT)  # CBC then ends at its next node, with its bound
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            return


def _read(log: str, solution: Path) -> Outcome:
    assert "Current model not valid" not in log, log
    status, *lines = solution.read_text().splitlines() if solution.exists() else [""]
    infeasible, optimal = "infeasible" in status.lower(), status.startswith("Optimal")
    match = _BOUND.search(log)
    bound = status.split()[-1] if optimal else match[1] if match else None
    # after the status come index, name, value and reduced cost of each variable; if there is no
    # integer solution, these are values of the LP relaxation
    found = bool(status) and not infeasible and "no integer solution" not in status
    rows = [line.replace("**", "").split() for line in lines if found]
    values = {row[1]: float(row[2]) for row in rows if len(row) == 4}
    known = None if bound is None else float(bound)
    return Outcome(values, known, infeasible, infeasible or optimal)
