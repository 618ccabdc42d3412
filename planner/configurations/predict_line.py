"""The ``predict`` command of a plan, which predicts the same configuration."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from pipeloom.ir.documents import named

from ..models.run import TrainingRun, usual
from .configuration import in_words
from .evaluation import Evaluated
from .space import Space

_ALWAYS = ("gpus", "global_batch", "seq")
_FLAGS = ("sequence_parallel", "fused_cross_entropy")


def predict_line(space: Space, where: str, found: Evaluated, schedule: str) -> str:
    """The command. ``where``: the cluster's name or file; ``schedule``: a family's name, or the
    file of an optimized schedule. A model from standard input is read from there again."""
    model = "-" if space.model.name == named("-") else space.model.name
    cluster = [] if space.base.gpu is not None else ["--cluster", where]
    return shlex.join(["pipeloom", "predict", model, *cluster, *_options(space, found, schedule)])


def _options(space: Space, found: Evaluated, schedule: str) -> Iterator[str]:
    """Options for all keys of the run that differ from the defaults of ``predict``."""
    run = found.configuration.run
    usually: dict[str, Any] = {field.name: field.default for field in fields(TrainingRun)}
    usually |= {"layers": space.model.layers, "etp": run.tp, "sequence_parallel": run.tp > 1}
    usually |= usual(space.model)
    for key, default in usually.items():
        value, name = getattr(run, key), f"--{key.replace('_', '-')}"
        if key == "schedule":
            yield from (name, schedule)
        elif key in _FLAGS and value != default:
            yield name if value else name.replace("--", "--no-")
        elif key == "compile" and value:
            yield from ("--run", "compile=true")
        elif key in _ALWAYS or value != default:
            yield from (name, in_words(value))
