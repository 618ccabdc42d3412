"""The settings of a training run (:class:`RunSettings`)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch

from pipeloom.ir.errors import InputError

from ..device import check_devices
from ..rank.loss_scale import LossScale
from ..rank.options import PipelineOptions, StagesAs

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The settings of a training run.

    ``steps``: the number of steps, including those before the checkpoint from which the run
    resumes. ``dtype``: the parameters' dtype, such as ``bfloat16``; None keeps the model's.
    ``device``: ``cpu`` or ``cuda``. ``seed``: set in each process before the model is created.
    ``progress``: write a line per step to standard error.

    ``param_dtype``, ``reduce_dtype`` (names like that of ``dtype``), ``clip_grad_norm``,
    ``post_validation``, ``varying_shapes``, ``stages_as``, ``memory``, ``pace``, ``check`` and
    ``timeout`` are options of :class:`Pipeline`. ``loss_scale`` is the initial scale, which adapts.

    ``replicas``: the number of replicas, for a program that averages over them; None: it follows
    from the number of processes that torchrun started, or the program's profile. ``save``: the
    folder for checkpoints. They are written at the end and, unless ``every`` is None, after every
    ``every`` steps. ``resume``: a checkpoint from which to resume, or a folder with several, of
    which the latest is used. ``eval_every``: the number of steps between evaluations, which use the
    source's ``eval_batch``; None: no evaluations.

    Raises InputError for invalid values.
    """

    steps: int = 1
    dtype: str | None = None
    param_dtype: str | None = None
    reduce_dtype: str | None = None
    clip_grad_norm: float | None = None
    loss_scale: float | None = None
    post_validation: bool = True
    varying_shapes: bool = False
    stages_as: StagesAs = "eager"
    seed: int = 0
    device: str = "cpu"
    progress: bool = False
    memory: bool = True
    pace: bool = False
    check: bool = True
    replicas: int | None = None
    save: str | None = None
    every: int | None = None
    resume: str | None = None
    eval_every: int | None = None
    timeout: float = 300.0

    def __post_init__(self) -> None:
        for name in ("steps", "replicas", "every", "eval_every"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise InputError(f"{name}: expected at least 1, got {count}")
        if self.every is not None and self.save is None:
            raise InputError(f"every: expected save to be given too, got only {self.every}")
        dtype_of(self.dtype)
        PipelineOptions(**self.options())  # raises for invalid values, before processes start
        if self.device not in ("cpu", "cuda"):
            raise InputError(f"device: expected cpu or cuda, got {self.device}")
        if self.device == "cuda":
            check_devices()

    def options(self) -> dict[str, Any]:
        """Returns the keyword arguments of :class:`Pipeline` that the settings define."""
        names = {field.name for field in fields(PipelineOptions)} - {"device"}
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name in names}
        dtypes = {key: dtype_of(own[key], key) for key in ("param_dtype", "reduce_dtype")}
        scale = None if self.loss_scale is None else LossScale(self.loss_scale)
        return own | dtypes | {"loss_scale": scale}


def dtype_of(name: str | None, key: str = "dtype") -> torch.dtype | None:
    """Returns the dtype with this ``name``, a key of :data:`DTYPES`; None for None.

    Raises InputError, whose message begins with ``key``, for an unknown name.
    """
    if name is not None and name not in DTYPES:
        raise InputError(f"{key}: expected {' or '.join(DTYPES)}, got {name}")
    return None if name is None else DTYPES[name]


DEFAULTS = RunSettings()
