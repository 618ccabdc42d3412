"""Checkpoints of a run: folders ``step-000010`` by ``torch.distributed.checkpoint``.

They hold ``Pipeline.state_dict()``, and in ``run`` the step that comes next and each process's
random numbers. A folder gets its name once all is written, and none is written
over: a save that was cut short leaves the last good one as it is.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from pipeloom.ir.errors import InputError

from ..device import Device
from ..errors import ExecutionError
from ..pipeline.pipeline import Pipeline
from .checkpoint_reader import Planner, Reader, check_files, complete, latest, saved_keys, told
from .replicas import Replicas
from .settings import RunSettings

# said of each load by a single process; threads cannot silence it for themselves
warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
NEEDED = ("model.", "optimizer.state.")  # what a run cannot go on without


@dataclass(frozen=True, slots=True)
class RunState:
    """A checkpoint's record of its run: the ``step`` that comes next, the classes of the
    ``optimizers``, and how many ``processes`` keep random numbers."""

    step: int
    optimizers: tuple[str, ...]
    processes: int


def read_run(path: Path) -> RunState:
    """The checkpoint's record of its run. Raises InputError where it cannot be read."""
    state: dict[str, dict[str, Any]] = {"run": {"step": 0, "optimizers": (), "processes": 0}}
    missing = [key for key in state["run"] if f"run.{key}" not in saved_keys(path)]
    if missing:
        raise InputError(f"{path}: run.{missing[0]}: missing; expected a checkpoint of run --save")
    with told(path, "loaded"):
        load(state, storage_reader=Reader(path), planner=Planner(), no_dist=True)
    return RunState(**state["run"])


def check_checkpoints(settings: RunSettings) -> None:
    """Raises InputError where the run cannot go on from what the settings say, or save there."""
    begin = 0
    if settings.resume is not None:
        path = latest(settings.resume)
        check_files(path)
        begin = read_run(path).step
        if begin >= settings.steps:
            raise InputError(
                f"steps: expected more than the {begin} that {path} has, got {settings.steps}"
            )
    if settings.save is not None:
        _check_folder(settings.save, begin)


def _check_folder(folder: str, begin: int) -> None:
    path = Path(folder)
    if path.is_file():
        raise InputError(f"{folder}: is a file, expected a folder")
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".writable"
        probe.touch()
        probe.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror}") from None
    if later := [name for step, name in sorted(complete(path).items()) if step > begin]:
        raise InputError(
            f"{folder}: expected no checkpoint after step {begin}, where the run begins, got "
            f"{later[-1].name}: --resume goes on from it"
        )


class Checkpoints:
    """Checkpoints of one pipeline and its ``replicas``; all processes call the methods."""

    def __init__(self, pipeline: Pipeline, replicas: Replicas) -> None:
        self._pipeline, self._replicas = pipeline, replicas
        self._process, self._processes = dist.get_rank(), dist.get_world_size()

    def save(self, folder: str, step: int) -> None:
        """The state before ``step``. Raises ExecutionError where it cannot be written."""
        path = Path(folder) / f"step-{step:06}"
        partial = path.with_name(f".{path.name}.partial")
        run = {
            "step": step,
            "optimizers": self._optimizers(),
            "processes": self._processes,
            "random": self._random(),
        }
        state = {**self._pipeline.state_dict(), "run": run}
        if self._process == 0:
            shutil.rmtree(partial, ignore_errors=True)
        self._replicas.barrier(self._pipeline)  # all make the folder, which must stay from here on
        self._write(state, partial)
        if self._process == 0:
            shutil.rmtree(path, ignore_errors=True)  # one that is not complete
            partial.rename(path)

    def load(self, path: Path, seed: int) -> tuple[int, str | None]:
        """The step that comes next, and a line on options of the optimizers where the source's are
        others than the checkpoint's, which win: the same on all processes.

        Raises InputError for another model, or optimizers with another state, on all alike.

        Random numbers go on as they were where there are as many processes; else they begin anew
        from ``seed`` and the step.
        """
        run, saved = read_run(path), saved_keys(path)
        state = self._pipeline.state_dict()
        self._check(path, run, state, saved)
        own = _options(state)
        for section, values in state.items():
            state[section] = {k: v for k, v in values.items() if f"{section}.{k}" in saved}
        random = self._random() if run.processes == self._processes else {}
        with told(path, "loaded"):
            wanted = {**state, "run": {"random": random}}
            load(wanted, storage_reader=Reader(path), planner=Planner())
        self._pipeline.load_state_dict({k: v for k, v in state.items() if v or k == "model"})
        for kind, numbers in random.get(str(self._process), {}).items():
            Device(torch.device(kind)).set_rng_state(numbers)
        if not random:
            torch.manual_seed(seed + run.step)
        return run.step, self._overruled(own, _options(state))

    def _overruled(self, own: Mapping[str, Any], loaded: Mapping[str, Any]) -> str | None:
        """A line on the options that the checkpoint has otherwise, each (name, values) once."""
        here = [
            f"{key.rpartition('.')[2]}: {value} of the checkpoint, not {own[key]}"
            for key, value in loaded.items()
            if value != own[key]
        ]
        rows = self._replicas.gather(self._pipeline, sorted(set(here)))
        found = sorted({line for row in rows for lines in row for line in lines})
        return "; ".join(found) or None

    def _random(self) -> dict[str, dict[str, Tensor]]:
        """The state of this process's generators."""
        devices = {torch.device("cpu"), self._pipeline.device}
        state = {device.type: Device(device).rng_state() for device in devices}
        return {str(self._process): state}

    def _write(self, state: Mapping[str, Any], path: Path) -> None:
        """Writes the state; what several processes have comes from the lowest one, so all from the
        first replica."""
        planner = DefaultSavePlanner(dedup_save_to_lowest_rank=True)
        with self._pipeline.together(), told(path, "saved", ExecutionError):
            save(dict(state), checkpoint_id=path, planner=planner)

    def _optimizers(self) -> tuple[str, ...]:
        """The names of all optimizers' classes, the same on all processes."""
        own = {type(optimizer).__name__ for optimizer in self._pipeline.optimizers.values()}
        rows = self._replicas.gather(self._pipeline, own)
        return tuple(sorted({name for row in rows for names in row for name in names}))

    def _check(
        self, path: Path, run: RunState, state: Mapping[str, Any], saved: Mapping[str, Any]
    ) -> None:
        """Raises InputError for missing or unknown names, other shapes and other optimizers."""
        optimizers = self._optimizers()
        if run.optimizers != optimizers:
            raise InputError(
                f"{path}: run.optimizers: expected {' and '.join(optimizers)}, as the model "
                f"source makes them, got {' and '.join(run.optimizers)}"
            )
        own = {f"{name}.{key}": v for name, values in state.items() for key, v in values.items()}
        fault = next(_faults(own, saved), None)
        rows = self._replicas.gather(self._pipeline, (fault, list(own)))
        faults, keys = zip(*(cell for row in rows for cell in row), strict=True)
        known = set[str]().union(*keys)
        left = (
            f"{key}: expected only what this run's model and optimizers have"
            for key in saved
            if key.startswith(NEEDED) and key not in known
        )
        for wrong in (*filter(None, faults), *left):
            raise InputError(f"{path}: {wrong}")


def _faults(own: Mapping[str, Any], saved: Mapping[str, Any]) -> Iterator[str]:
    for key, value in own.items():
        if key not in saved:
            if key.startswith(NEEDED):
                yield f"{key}: missing; expected all that this run's model and optimizers have"
        elif isinstance(value, Tensor):
            shape = getattr(saved[key], "size", None)
            if shape != value.shape:
                got = "no tensor" if shape is None else list(shape)
                yield f"{key}: expected shape {list(value.shape)}, got {got}"


def _options(state: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the optimizers, such as ``lr``, by key; loading writes into tensors."""
    return {
        key: value.tolist() if isinstance(value, Tensor) else value
        for key, value in state.get("optimizer", {}).items()
        if key.startswith("param_groups.")
    }
