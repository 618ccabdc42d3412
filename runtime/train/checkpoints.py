"""Checkpoints of a run: folders like ``step-000010``, written by ``torch.distributed.checkpoint``.

A checkpoint contains ``Pipeline.state_dict()`` and, under ``run``, the number of the next step
and each process's random state. A folder gets its final name when it is
complete, and complete checkpoints are not overwritten: an interrupted save leaves the previous
checkpoint intact.
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
from .checkpoint_reader import Planner, Reader, complete, latest, saved_keys, told
from .replicas import Replicas
from .settings import RunSettings

# torch warns at each load by a single process; a filter cannot be set for a thread, so it is global
warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
STATE = ("model.", "optimizer.state.")  # prefixes of the keys of values that a run must load
# prefix of the keys of optimizer options, which may be missing: other versions of torch have others
OPTIONS = "param_groups."


@dataclass(frozen=True, slots=True)
class RunState:
    """The part of a checkpoint that describes the run that saved it.

    ``step``: the number of the next step (from 0). ``processes``: the number of processes, whose
    random states are saved.
    """

    step: int
    processes: int


def read_run(path: Path) -> RunState:
    """Returns the part of the checkpoint ``path`` that describes its run.

    Raises InputError if it cannot be read.
    """
    state: dict[str, dict[str, Any]] = {"run": {"step": 0, "processes": 0}}
    missing = [key for key in state["run"] if f"run.{key}" not in saved_keys(path)]
    if missing:
        raise InputError(f"{path}: run.{missing[0]}: missing; expected a checkpoint of run --save")
    with told(path, "loaded"):
        load(state, storage_reader=Reader(path), planner=Planner(), no_dist=True)
    return RunState(**state["run"])


def check_checkpoints(settings: RunSettings) -> None:
    """Raises InputError if a run cannot resume from, or save to, the folders in its settings.

    Creates the folder to save to, if it does not exist.
    """
    begin = 0
    if settings.resume is not None:
        path = latest(settings.resume)
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
    """Saves and loads checkpoints of one pipeline and its replicas.

    All processes call the methods at the same time.
    """

    def __init__(self, pipeline: Pipeline, replicas: Replicas) -> None:
        self._pipeline, self._replicas = pipeline, replicas
        self._process, self._processes = dist.get_rank(), dist.get_world_size()

    def save(self, folder: str, step: int) -> None:
        """Saves a checkpoint in ``folder``; ``step``: the number of the next step.

        Raises ExecutionError if it cannot be written.
        """
        path = Path(folder) / f"step-{step:06}"
        partial = path.with_name(f".{path.name}.partial")
        run = {"step": step, "processes": self._processes, "random": self._random()}
        state = {**self._pipeline.state_dict(), "run": run}
        if self._process == 0:
            shutil.rmtree(partial, ignore_errors=True)
        self._replicas.barrier(self._pipeline)  # all create the folder: remove an old one before
        self._write(state, partial)
        if self._process == 0:
            shutil.rmtree(path, ignore_errors=True)  # an incomplete one
            partial.rename(path)

    def load(self, path: Path, seed: int) -> int:
        """Loads the checkpoint ``path``; returns the number of the next step.

        The optimizers' options in the checkpoint override those of the source. Random states are
        restored if the number of processes is that of the saved run; otherwise they are seeded from
        ``seed`` and the step. Raises InputError on all processes if the checkpoint is of another
        model or of optimizers with other
        state.
        """
        run, saved = read_run(path), saved_keys(path)
        state = self._pipeline.state_dict()
        self._check(path, state, saved)
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
        return run.step

    def _random(self) -> dict[str, dict[str, Tensor]]:
        """Returns the states of this process's random generators.

        The only key is the process's global rank, as a string. Its value maps the type of each
        device (``cpu``, ``cuda``) to the state of that device's default generator.
        """
        devices = {torch.device("cpu"), self._pipeline.device}
        state = {device.type: Device(device).generator().get_state() for device in devices}
        return {str(self._process): state}

    def _write(self, state: Mapping[str, Any], path: Path) -> None:
        """Writes this process's ``state`` to the folder ``path``.

        A value that several processes have is written by the one with the lowest global rank, which
        is in the first replica. Raises ExecutionError if writing fails.
        """
        planner = DefaultSavePlanner(dedup_save_to_lowest_rank=True)
        with self._pipeline.together(), told(path, "saved", ExecutionError):
            save(dict(state), checkpoint_id=path, planner=planner)

    def _check(self, path: Path, state: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
        """Raises InputError if the checkpoint ``path`` contains values that no process has.

        (Values that it lacks, or that have other shapes, are refused by torch when it loads.)
        ``saved``: the keys of the checkpoint; ``state``: the pipeline's state on this process.
        """
        own = [f"{section}.{key}" for section, values in state.items() for key in values]
        rows = self._replicas.gather(self._pipeline, own)
        known = {key for row in rows for keys in row for key in keys}
        left = [key for key in saved if key.startswith(STATE) and key not in known]
        if left:
            raise InputError(
                f"{path}: {left[0]}: expected only what this run's model and optimizers have"
            )
