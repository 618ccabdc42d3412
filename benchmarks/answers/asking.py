"""Answers of the command line to an instance: one process a command, nothing of it imported."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from .instances import OWNERS, Instance

CACHE = "PIPELOOM_CACHE"
MOST_SECONDS = 600.0
ORDER = ("order", "pairs", "transfers", "averages")
"""Of a schedule's file: what the answer is, without the profile and the report."""


def families() -> list[str]:
    """The families that ``build`` knows."""
    _, answer = _command("build", "--list", "--json")
    return [family["name"] for family in answer["families"]]


def ask(instance: Instance) -> dict[str, Any]:
    """Status, cost, bound and a digest of the schedule; ``seconds`` of the whole process."""
    with TemporaryDirectory() as folder:
        profile, schedule = Path(folder, "profile.json"), Path(folder, "schedule.json")
        profile.write_text(json.dumps(instance.profile), encoding="utf-8")
        owners = Path(folder, OWNERS)
        owners.write_text(json.dumps(instance.owners), encoding="utf-8")
        options = [str(owners) if word == OWNERS else word for word in instance.options]
        output = [] if instance.command == ("compare",) else ["-o", str(schedule)]
        began = perf_counter()
        code, answer = _command(*instance.command, str(profile), *options, *output, "--json")
        seconds = round(perf_counter() - began, 2)
        words = {"command": [*instance.command, *instance.options]}
        found = words | {"profile": _digest(instance.profile)} | _figures(code, answer, folder)
        if schedule.exists():
            document = json.loads(schedule.read_text(encoding="utf-8"))
            found["order"] = _digest({key: document.get(key) for key in ORDER})
        if instance.program:
            found["program"] = _program(schedule, Path(folder, "program.json"))
    return found | {"seconds": seconds}


def _command(*words: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the answer, empty where there is none."""
    environment = {key: value for key, value in os.environ.items() if key != CACHE}
    done = subprocess.run(
        [sys.executable, "-m", "pipeloom", *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=MOST_SECONDS,
        check=False,
    )
    try:
        return done.returncode, json.loads(done.stdout)
    except ValueError:
        return done.returncode, {"error": [done.stderr]}


def _figures(code: int, answer: dict[str, Any], folder: str) -> dict[str, Any]:
    """The figures that are held against each other later; ``candidates``: the costs of those
    compared."""
    if "error" in answer:
        lines = [line.replace(f"{folder}/", "") for line in answer["error"]]
        return {"status": "refused" if code == 2 else "crash", "error": lines}
    if "results" in answer:
        (found,) = [row for row in answer["results"] if row["schedule"] == "optimize"]
        others = {row["schedule"]: row.get("period") for row in answer["results"]}
        return _report(found | {"objective": "period"}) | {"candidates": others}
    return _report(answer) | _chosen(answer)


def _report(answer: dict[str, Any]) -> dict[str, Any]:
    """The figures of one schedule, or the least memory that would be enough for one."""
    status = {"status": answer["status"]}
    if answer.get("objective") not in answer:
        return status | {k: value for k, value in answer.items() if k.startswith("smallest_")}
    known: dict[str, Any] = {key: answer[key] for key in ("lower_bound", "gap") if key in answer}
    if "averaging" not in answer and "iteration_time" in answer:
        known["step"] = answer["iteration_time"]  # a schedule's report has it, recorded as its step
    return status | {"cost": answer[answer["objective"]]} | known


def _chosen(answer: dict[str, Any]) -> dict[str, Any]:
    """The bound on all that was chosen among, and what each costs."""
    choice = answer.get("choice") or answer.get("partition") or {}
    if "schemes" in choice:
        steps = {row["scheme"]: row.get("step") for row in choice["schemes"]}
        return {"step": steps[choice["scheme"]], "candidates": steps}
    if not choice:
        return {}
    costs = {row["placement"]: row["cost"] for row in choice["placements"]}
    return {"lower_bound_of_all": choice["lower_bound"], "candidates": costs}


def _program(schedule: Path, program: Path) -> str:
    """The digest of the compiled program, or what the compiler or the verifier has against it."""
    for words in (("compile", str(schedule), "-o", str(program)), ("verify", str(program))):
        code, answer = _command(*words, "--json")
        if code:
            return f"{words[0]}: {answer}"
    return hashlib.sha256(program.read_bytes()).hexdigest()


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
