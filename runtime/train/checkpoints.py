"""Checkpoints of a run: folders ``step-000010``, written by ``torch.distributed.checkpoint``.

They contain ``Pipeline.state_dict()`` and, under ``run``, the number of the next step and each
process's random state. A folder is renamed to its final name when it is complete, and existing
ones are not overwritten: an interrupted save leaves the previous checkpoint intact.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Mapping
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

# a warning at each load by a single process; the filter is global, as it cannot be set per thread
warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
STATE = ("model.", "optimizer.state.")  # values that a run loads
OPTIONS = "param_groups."  # may be missing, as another version of torch has others


@dataclass(frozen=True, slots=True)
class RunState:
    """A checkpoint's record of its run.

    ``step``: the next step. ``optimizers``: the names of the optimizers' classes. ``processes``:
    the number of processes whose random states are saved.
    """

    step: int
    optimizers: tuple[str, ...]
    processes: int


def read_run(path: Path) -> RunState:
    """Returns the checkpoint's record of its run. Raises InputError if it cannot be read."""
    state: dict[str, dict[str, Any]] = {"run": {"step": 0, "optimizers": (), "processes": 0}}
    missing = [key for key in state["run"] if f"run.{key}" not in saved_keys(path)]
    if missing:
        raise InputError(f"{path}: run.{missing[0]}: missing; expected a checkpoint of run --save")
    with told(path, "loaded"):
        load(state, storage_reader=Reader(path), planner=Planner(), no_dist=True)
    return RunState(**state["run"])


def check_checkpoints(settings: RunSettings) -> None:
    """Raises InputError if the run cannot resume from, or save to, the folders in the settings."""
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
        """Saves the state before ``step``. Raises ExecutionError if it cannot be written."""
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
        self._replicas.barrier(self._pipeline)  # all create the folder, which must then stay
        self._write(state, partial)
        if self._process == 0:
            shutil.rmtree(path, ignore_errors=True)  # an incomplete one
            partial.rename(path)

    def load(self, path: Path, seed: int) -> tuple[int, str | None]:
        """Loads a checkpoint; returns the next step and a note about optimizer options, or None.

        Options of the checkpoint override those of the source; the note, equal on all processes,
        lists the differences. Raises InputError on all processes for another model, or for
        optimizers with another state. Random states are restored if the number of processes is
        unchanged; otherwise they are seeded from ``seed`` and the step.
        """
        run, saved = read_run(path), saved_keys(path)
        state = self._pipeline.state_dict()
        self._check(path, run, state, saved)
        own = _options(state)
        for section, values in state.items():
            state[section] = {
                key: value
                for key, value in values.items()
                if f"{section}.{key}" in saved or not key.startswith(OPTIONS)
            }
        random = self._random() if run.processes == self._processes else {}
        with told(path, "loaded"):
            wanted = {**state, "run": {"random": random}}
            load(wanted, storage_reader=Reader(path), planner=Planner())
        self._pipeline.load_state_dict({k: v for k, v in state.items() if v or k == "model"})
        for kind, numbers in random.get(str(self._process), {}).items():
            Device(torch.device(kind)).generator().set_state(numbers)
        if not random:
            torch.manual_seed(seed + run.step)
        return run.step, self._overruled(own, _options(state))

    def _overruled(self, own: Mapping[str, Any], loaded: Mapping[str, Any]) -> str | None:
        """Returns a note that lists each differing option with its values once; else None."""
        here = [
            f"{key.rpartition('.')[2]}: {value} of the checkpoint, not {own[key]}"
            for key, value in loaded.items()
            if value != own[key]
        ]
        rows = self._replicas.gather(self._pipeline, sorted(set(here)))
        found = sorted({line for row in rows for lines in row for line in lines})
        return "; ".join(found) or None

    def _random(self) -> dict[str, dict[str, Tensor]]:
        """Returns the state of this process's random generators."""
        devices = {torch.device("cpu"), self._pipeline.device}
        state = {device.type: Device(device).generator().get_state() for device in devices}
        return {str(self._process): state}

    def _write(self, state: Mapping[str, Any], path: Path) -> None:
        """Writes the state; values on several processes are written by the lowest one.

        So they come from the first replica.
        """
        planner = DefaultSavePlanner(dedup_save_to_lowest_rank=True)
        with self._pipeline.together(), told(path, "saved", ExecutionError):
            save(dict(state), checkpoint_id=path, planner=planner)

    def _optimizers(self) -> tuple[str, ...]:
        """Returns the names of all optimizers' classes, the same on all processes."""
        own = {type(optimizer).__name__ for optimizer in self._pipeline.optimizers.values()}
        rows = self._replicas.gather(self._pipeline, own)
        return tuple(sorted({name for row in rows for names in row for name in names}))

    def _check(
        self, path: Path, run: RunState, state: Mapping[str, Any], saved: Mapping[str, Any]
    ) -> None:
        """Raises InputError for other optimizers, and for values that nothing here has.

        Missing values and other shapes are refused by torch when it plans the loading.
        """
        optimizers = self._optimizers()
        if run.optimizers != optimizers:
            raise InputError(
                f"{path}: run.optimizers: expected {' and '.join(optimizers)}, as the model "
                f"source makes them, got {' and '.join(run.optimizers)}"
            )
        own = [f"{section}.{key}" for section, values in state.items() for key in values]
        rows = self._replicas.gather(self._pipeline, own)
        known = {key for row in rows for keys in row for key in keys}
        left = [key for key in saved if key.startswith(STATE) and key not in known]
        if left:
            raise InputError(
                f"{path}: {left[0]}: expected only what this run's model and optimizers have"
            )


def _options(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the optimizers' options, such as ``lr``, by key; tensors become lists."""
    return {
        key: value.tolist() if isinstance(value, Tensor) else value
        for key, value in state.get("optimizer", {}).items()
        if key.startswith(OPTIONS)
    }
