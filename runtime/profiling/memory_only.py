"""Bytes of a model's stages by calculation: nothing is computed, and no memory taken.

Stages run one after the other in this process, as in a measurement, on fake tensors: what autograd
saves and what waits for W is counted as there. Times are not known.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from pipeloom.ir.errors import InputError
from pipeloom.ir.formats.measured_profile import Measurement

from ..fake_tensors import fake_module, faked, really
from ..pipeline.model_source import ModelSource
from ..probes.measurement_program import Asked
from ..rank.options import Options, StagesAs
from ..stages.store import Stage, made
from ..transport.single import SingleTransport
from .source_pipeline import measurable, measure_source


def calculate_memory(
    source: ModelSource,
    stages: int,
    ranks: int,
    asked: Asked,
    *,
    dtype: torch.dtype | None,
    name: str = "",
    stages_as: StagesAs = "eager",
) -> Measurement:
    """The profile of so many stages of ``source``, with all bytes and without times: each op takes
    1 ms. Compiled graphs hold what graphs do.

    Raises InputError where a stage does something that depends on values in tensors.
    """
    asked = replace(asked, fused=False, repeats=0, warmup=0)
    options: Options = {
        "tied": source.tied(stages),
        "transport": SingleTransport(),
        "device": "cpu",
        "stages_as": "eager" if stages_as == "eager" else "aten",
    }

    def place(stage: Stage, number: int) -> nn.Module:
        with really(), torch.device("meta"):
            module = made(stage, number)
        return fake_module(module, torch.device("cpu"), dtype)

    with _told(source), faked():
        program = measurable(stages, 1, asked, name, averages=False)
        found = measure_source(source, program, asked, options, dtype=dtype, place=place)
    profile = replace(found.profile, ranks=ranks)
    return replace(found, profile=profile, together=False, times=({},) * stages)


@contextmanager
def _told(source: ModelSource) -> Iterator[None]:
    """A context whose errors are one line that says what to do instead."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        words = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            f"memory_only: {type(source).__name__}: expected stages and an optimizer that run "
            f"without values, as these are measured otherwise: {type(error).__name__}: {words}"
        ) from error
