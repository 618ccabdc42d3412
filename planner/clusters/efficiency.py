"""How much of the published peaks kernels and messages reach: curves of few parameters.

Each has a physical meaning and a prior, the median of what is measured elsewhere and how far GPUs
and software differ in it; ``calibrate`` moves them as far as measurements ask
(:mod:`..prediction.fit`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

from ..packaged import packaged


class Prior(NamedTuple):
    """A parameter's usual value, how far it varies (standard deviation of its logarithm), and the
    most that it can be."""

    usual: float
    spread: float
    most: float


PRIORS: Mapping[str, Prior] = MappingProxyType(
    {
        "gemm": Prior(0.70, 0.2, 0.98),
        "gemm_narrow": Prior(0.55, 0.2, 0.98),
        "gemm_depth": Prior(96.0, 0.7, 2048.0),
        "attention": Prior(0.45, 0.4, 0.95),
        "attention_backward": Prior(0.80, 0.15, 1.0),
        "attention_ring": Prior(0.75, 0.25, 1.0),
        "memory": Prior(0.80, 0.15, 1.0),
        "kernel_ms": Prior(0.015, 0.7, 0.2),
        "link": Prior(0.75, 0.3, 1.0),
        "collective_ms": Prior(0.025, 0.7, 1.0),
        "exposed": Prior(0.4, 0.5, 1.0),
        "step_ms": Prior(5.0, 1.0, 1000.0),
    }
)
"""Of each parameter of :class:`Efficiency`."""
MEMORY_PRIORS: Mapping[str, Prior] = MappingProxyType(
    {"fragmentation": Prior(0.02, 1.0, 1.0), "context_gib": Prior(0.3, 1.5, 64.0)}
)
"""Of the parameters of :class:`Efficiency` that memory alone depends on."""

BOUNDS = {name: prior.most for name, prior in [*PRIORS.items(), *MEMORY_PRIORS.items()]}
BOUNDS |= {"spread": 10.0, "spread_elsewhere": 10.0}
"""The most that each number of :class:`Efficiency` can be."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Rates that kernels and messages reach on one kind of GPU.

    ``gemm``: share of the peak of a deep product that fills all multiprocessors, in 16 bits or
    more; ``gemm_narrow``: in 8 or 4 bits. ``gemm_depth``: the inner dimension k at which half of
    it is reached (k / (k + depth)). ``attention``: share of the peak of fused attention's forward;
    ``attention_backward``: its backward's, of the forward's; ``attention_ring``: what of both is
    left where ranks share out a sequence, whose causal half no cut divides evenly. ``memory``:
    share of the bandwidth. ``kernel_ms``: the least time of a kernel, what the host takes to
    launch it. ``link``: share of a link's bandwidth that messages reach; ``collective_ms``: the
    least time of one. ``exposed``: share of the averaging of gradients that computation cannot
    hide. ``step_ms``: of each step beside kernels. ``fragmentation``: memory that the allocator has
    beyond what tensors take, as a share of it; ``context_gib``: what libraries take. ``spread``:
    standard deviation of the logarithm of measured over predicted step times where the layer's
    shape is one of ``shapes``, measured over calculated time of layers that were measured;
    ``spread_elsewhere``: where it is not.
    """

    gemm: float = PRIORS["gemm"].usual
    gemm_narrow: float = PRIORS["gemm_narrow"].usual
    gemm_depth: float = PRIORS["gemm_depth"].usual
    attention: float = PRIORS["attention"].usual
    attention_backward: float = PRIORS["attention_backward"].usual
    attention_ring: float = PRIORS["attention_ring"].usual
    memory: float = PRIORS["memory"].usual
    kernel_ms: float = PRIORS["kernel_ms"].usual
    link: float = PRIORS["link"].usual
    collective_ms: float = PRIORS["collective_ms"].usual
    exposed: float = PRIORS["exposed"].usual
    step_ms: float = PRIORS["step_ms"].usual
    fragmentation: float = MEMORY_PRIORS["fragmentation"].usual
    context_gib: float = MEMORY_PRIORS["context_gib"].usual
    spread: float = 0.15
    spread_elsewhere: float = 0.15
    shapes: Mapping[str, float] = field(default_factory=dict, hash=False)

    def to_dict(self) -> dict[str, Any]:
        """The object of a cluster file."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return found | {"shapes": dict(self.shapes)}


LIKE = {
    **{"A100-40GB": "A100-80GB", "H200": "H100", "GH200-144GB": "GH200-96GB"},
    **{"B300": "B200", "MI325X": "MI300X"},
}
"""GPUs that take the calibration of another one with the same chip, but other memory."""


@cache
def _records() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = packaged(__package__, "calibrated.json")["gpus"]
    return found


def calibrated(gpu: str) -> Efficiency:
    """The recorded calibration of a GPU, or of one with the same chip; the priors where neither has
    one."""
    if gpu in _records():
        return Efficiency(**_records()[gpu])
    found = Efficiency(**_records().get(LIKE.get(gpu, ""), {}))
    return replace(found, spread=found.spread_elsewhere)
