"""GPUs by name, with the peaks that their makers publish.

Dense rates, with accumulation in float32 for consumer cards; memory is what a process can
allocate. A gigabyte is 10^9 bytes, a GiB 2^30.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..packaged import packaged

PRECISIONS = ("fp32", "bf16", "fp8", "fp4", "fp16")
SIXTEEN = ("bf16", "fp16")
"""Of which a GPU has one at least."""
WIDER = {"fp4": "fp8", "fp8": "bf16", "fp32": "bf16", "bf16": "fp16", "fp16": "bf16"}
"""The precision whose rate counts where a GPU has no units for one."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device. ``teraflops``: dense peak by precision (``fp32``, ``bf16``, ``fp8``, ``fp4``;
    where ``fp16`` is not named it is as fast as bf16); ``memory_gib``: what a process can allocate;
    ``gigabytes_per_second``: of its memory; ``multiprocessors``: what blocks of a kernel are dealt
    to. ``source``: where that is published.
    """

    name: str
    teraflops: Mapping[str, float] = field(hash=False)
    memory_gib: float
    gigabytes_per_second: float
    multiprocessors: int
    source: str = ""

    def peak(self, precision: str) -> float:
        """Dense peak in teraflops; of the next wider precision where it has none of its own."""
        found = self.teraflops.get(precision)
        return self.peak(WIDER[precision]) if found is None else found

    def has(self, precision: str) -> bool:
        """Whether it has units for a precision: fp16 where it has bf16."""
        return precision in self.teraflops or (precision == "fp16" and "bf16" in self.teraflops)

    def to_dict(self) -> dict[str, Any]:
        """The object of a cluster file."""
        return asdict(self) | {"teraflops": dict(self.teraflops)}


GPUS = {words["name"]: Gpu(**words) for words in packaged(__package__, "gpus.json")}
"""Presets by name."""
