"""Ranks of a GPT that share one GPU: what was planned against what is measured, in one call."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..recording import environment

HERE = Path(__file__).parent
RECORD = HERE / "results" / "one_gpu.json"
BUDGET, LONGEST, LEAST = 540.0, 300.0, 20.0  # seconds in all, of one part, and left to begin one


def main(arguments: list[str]) -> int:
    """Runs the parts, each in a process of its own, and records what each has told; 1 where a
    target is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.one_gpu", description=__doc__)
    parser.add_argument("--device", choices=["cuda", "cpu"], help="cuda where there is one")
    parser.add_argument("--small", action="store_true", help="a tiny model, two ranks")
    parser.add_argument(
        "--budget", type=float, default=BUDGET, help="seconds in all, 540 by default"
    )
    parser.add_argument(
        "--parts", nargs="+", metavar="NAME", help="these alone, others as recorded"
    )
    parser.add_argument(
        "--resume", action="store_true", help="parts that are recorded are left out"
    )
    parser.add_argument("--to", type=Path, help="results/one_gpu.json; on a CPU a temporary file")
    options = parser.parse_args(arguments)
    import torch

    device = options.device or ("cuda" if torch.cuda.is_available() else None)
    if device is None:
        print("no GPU here, nothing measured; --device cpu --small tries all parts out")
        return 0
    path = options.to or (RECORD if device == "cuda" else Path(tempfile.mkdtemp(), "one_gpu.json"))
    found = run_parts(path, device, options)
    from .table import judged, render

    print(render(found["parts"]))
    targets = judged(found["parts"])
    _write(path, found | {"targets": targets})
    for target, met in targets.items():
        print(f"{'not measured' if met is None else 'met' if met else 'MISSED':12} {target}")
    print(f"recorded in {path}")
    return 1 if False in targets.values() else 0


def run_parts(path: Path, device: str, options: argparse.Namespace) -> dict[str, Any]:
    """The record, with what these parts have told; it is written after each of them."""
    from .sizes import FULL, SMALL

    end = time.monotonic() + options.budget
    names = part_names([*(SMALL if options.small else FULL).ranks])
    wanted = options.parts or names
    unknown = [name for name in wanted if name not in names]
    if unknown:
        raise SystemExit(f"--parts: expected some of {' '.join(names)}, got {' '.join(unknown)}")
    keep = (options.resume or options.parts) and path.exists()
    parts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["parts"] if keep else {}
    here = {"environment": environment(), "device": device, "small": options.small}
    found = here | {"parts": parts}
    for name in wanted:
        if options.resume and _done(parts.get(name, {})):
            continue
        left = end - time.monotonic()
        if left < LEAST:
            parts.setdefault(name, {"part": {"failed": "no time left"}})
            continue
        print(f"== {name} ({left:.0f} s left)", flush=True)
        parts[name] = _run(name, device, options.small, min(left, LONGEST))
        _write(path, found)
    return found


def part_names(ranks: Sequence[int]) -> list[str]:
    """The parts in the order in which they run: the most wanted first."""
    return ["environment", "gradients", *(f"ranks-{p}" for p in ranks), "split"]


def _run(name: str, device: str, small: bool, seconds: float) -> dict[str, Any]:
    """The results that a part wrote before it ended, or before its time was over."""
    from .telling import told

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "told")
        words = [name, "--device", device, "--to", str(file), *(["--small"] * small)]
        command = [sys.executable, "-m", "benchmarks.one_gpu.part", *words]
        begin = time.monotonic()
        failure = ""
        try:
            code = subprocess.run(command, timeout=seconds, check=False).returncode
            failure = f"exit code {code}" if code else ""
        except subprocess.TimeoutExpired:
            failure = f"not done after {seconds:.0f} s"
        found = told(file)
    if failure:
        found.setdefault("part", {"failed": failure})
    return found | {"seconds": round(time.monotonic() - begin, 1)}


def _done(part: dict[str, Any]) -> bool:
    """Whether nothing of it failed."""
    failed = (isinstance(value, dict) and "failed" in value for value in part.values())
    return bool(part) and not any(failed)


def _write(path: Path, found: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
