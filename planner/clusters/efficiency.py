"""The shares of the published peaks that kernels and messages reach: curves with few parameters.

Each parameter has a physical meaning and a prior distribution, whose median and variation are those
of measurements on other GPUs and software. ``calibrate`` fits the parameters to measurements
(:mod:`..prediction.fit`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Annotated, Any

from pydantic import ConfigDict
from pydantic_core import CoreSchema
from pydantic_core.core_schema import custom_error_schema, float_schema

from pipeloom.ir.documents.validation import Document

from ..packaged import packaged

PRESETS: dict[str, dict[str, Any]] = packaged(__package__, "presets.json")
"""Presets: links and clusters by name, aliases of GPUs, and GPUs that have the same chip as another
one."""


@dataclass(frozen=True)
class Rate:
    """Annotation of a field that is a number > 0.

    ``most``: its maximum. ``spread``: the standard deviation of its logarithm in the prior; None if
    it is not fitted.
    """

    most: float = inf
    spread: float | None = None

    def __get_pydantic_core_schema__(self, *_: object) -> CoreSchema:
        words = "a number > 0" + (f" and <= {self.most:g}" if self.most < inf else "")
        number = float_schema(strict=True, allow_inf_nan=False, gt=0, le=self.most)
        return custom_error_schema(number, "expected", custom_error_message=words)


class Efficiency(Document):
    """Rates that kernels and messages reach on one kind of GPU. The defaults are the medians of the
    priors.

    ``gemm``: share of the peak that a matrix product in 16 bits or more reaches, if its inner
    dimension is large and it fills all multiprocessors; ``gemm_narrow``: the same in 8 or 4 bits.
    ``gemm_depth``: the inner dimension at which half of this share is reached; for an inner
    dimension k, the share is multiplied by k / (k + ``gemm_depth``).

    ``attention``: share of the peak for the forward of fused attention; ``attention_backward``: the
    backward's rate relative to the forward's; ``attention_ring``: factor on both rates in a ring of
    context parallel ranks, over which the causal half cannot be divided evenly. ``memory``: share
    of the memory bandwidth. ``kernel_ms``: minimum time of a kernel, due to its launch.

    ``link``: share of a link's bandwidth; ``collective_ms``: minimum time of a message.
    ``exposed``: share of the averaging of gradients that does not overlap with computation.
    ``step_ms``: time per step in addition to kernels. ``fragmentation``: memory overhead of the
    allocator, as a share of the tensors; ``context_gib``: memory of libraries.

    ``shapes``: ratio of measured to calculated time for each measured shape of layer. ``spread``:
    standard deviation of the logarithm of measured over predicted step times, if the shapes of all
    layers are in ``shapes``; ``spread_elsewhere``: the same if they are not.
    """

    model_config = ConfigDict(frozen=True)

    gemm: Annotated[float, Rate(0.98, 0.2)] = 0.70
    gemm_narrow: Annotated[float, Rate(0.98, 0.2)] = 0.55
    gemm_depth: Annotated[float, Rate(2048.0, 0.7)] = 96.0
    attention: Annotated[float, Rate(0.95, 0.4)] = 0.45
    attention_backward: Annotated[float, Rate(1.0, 0.15)] = 0.80
    attention_ring: Annotated[float, Rate(1.0, 0.25)] = 0.75
    memory: Annotated[float, Rate(1.0, 0.15)] = 0.80
    kernel_ms: Annotated[float, Rate(0.2, 0.7)] = 0.015
    link: Annotated[float, Rate(1.0, 0.3)] = 0.75
    collective_ms: Annotated[float, Rate(1.0, 0.7)] = 0.025
    exposed: Annotated[float, Rate(1.0, 0.5)] = 0.4
    step_ms: Annotated[float, Rate(1000.0, 1.0)] = 5.0
    fragmentation: Annotated[float, Rate(1.0, 1.0)] = 0.02
    context_gib: Annotated[float, Rate(64.0, 1.5)] = 0.3
    spread: Annotated[float, Rate(10.0)] = 0.15
    spread_elsewhere: Annotated[float, Rate(10.0)] = 0.15
    shapes: dict[str, Annotated[float, Rate()]] = {}  # noqa: RUF012


MEMORY_RATES = ("fragmentation", "context_gib")
"""The parameters of :class:`Efficiency` that affect memory, not time."""


def priors(*, memory: bool) -> dict[str, tuple[float, float, float]]:
    """Return the prior of each fitted parameter, by name: its median, the standard deviation of its
    logarithm, and its maximum.

    ``memory``: True for the parameters that are fitted to memory, False for those that are fitted
    to times.
    """
    return {
        name: (field.default, rate.spread, rate.most)
        for name, field in Efficiency.model_fields.items()
        for rate in field.metadata
        if rate.spread is not None and (name in MEMORY_RATES) is memory
    }


@cache
def _records() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = packaged(__package__, "calibrated.json")["gpus"]
    return found


def calibrated(gpu: str) -> Efficiency:
    """Return the recorded calibration of a GPU; if there is none, that of a GPU with the same chip;
    if there is none either, the medians of the priors."""
    if gpu in _records():
        return Efficiency(**_records()[gpu])
    found = Efficiency(**_records().get(PRESETS["calibrated like"].get(gpu, ""), {}))
    return found.model_copy(update={"spread": found.spread_elsewhere})
