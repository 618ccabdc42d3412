"""Runs PuLP's CBC as a process that can be stopped, ends with this process and leaves no files.

PuLP's own solver waits for CBC without asking whether to stop, and does not read its bound.
"""

from __future__ import annotations

import math
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakSet

import pulp

from pipeloom.ir.litter import own, remove_litter, tied_to_parent

from ..core.stopping import StoppingCriterion, TimeLimit

PREFIX = "pipeloom-cbc-"  # of the names of folders
_POLL = 0.05  # seconds between two calls of should_stop
_GRACE = 3.0  # seconds that CBC has to end by itself
_BOUND = re.compile(r"^Lower bound:\s+(\S+)$", re.MULTILINE)
_running: WeakSet[subprocess.Popen[bytes]] = WeakSet()


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
    """Minimize ``lp`` for at most ``seconds``, from the solution ``start``."""
    command = [pulp.PULP_CBC_CMD.pulp_cbc_path, "model.mps", "-timeMode", "elapsed"]
    if math.isfinite(seconds):
        command += ["-sec", f"{seconds:.2f}"]
    for name, value in options.items():
        command += [f"-{name}", str(value)]
    command += ["-mips", "start.sol", "-solve"]
    command += ["-printingOptions", "all", "-solution", "solution.sol"]
    with _own_folder() as path:
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
            _running.add(process)
            try:
                _wait(process, seconds, should_stop)
            finally:
                process.kill()  # has no effect if it has ended
                process.wait()
        return _read((path / "log").read_text(errors="replace"), path / "solution.sol")


@contextmanager
def _own_folder() -> Iterator[Path]:
    """A new folder named after this process; removes the folders of processes that have ended."""
    remove_litter(PREFIX)
    with tempfile.TemporaryDirectory(prefix=own(PREFIX), ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def end_all() -> None:
    """Kill the processes started here and remove their folders.

    For a process that exits without waiting for the threads that would do so.
    """
    for process in list(_running):
        process.kill()
        process.wait()
    for folder in Path(tempfile.gettempdir()).glob(f"{own(PREFIX)}*"):
        shutil.rmtree(folder, ignore_errors=True)


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
    status, *lines = solution.read_text().splitlines() if solution.exists() else [""]
    infeasible, optimal = "infeasible" in status.lower(), status.startswith("Optimal")
    match = _BOUND.search(log)
    bound = status.split()[-1] if optimal else match[1] if match else None
    # after the status come index, name, value and reduced cost of each variable; without an integer
    # solution these are of the relaxation
    found = bool(status) and not infeasible and "no integer solution" not in status
    rows = [line.replace("**", "").split() for line in lines if found]
    values = {row[1]: float(row[2]) for row in rows if len(row) == 4}
    known = None if bound is None else float(bound)
    return Outcome(values, known, infeasible, infeasible or optimal)
