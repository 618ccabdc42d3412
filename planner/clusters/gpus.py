"""GPUs by name, with published peaks.

Peak rates are those without sparsity, and for consumer cards those with accumulation in float32.
Memory is what a process can allocate. A gigabyte is 10^9 bytes, a GiB 2^30.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, field_validator

from pipeloom.ir.documents.fields import Bandwidth
from pipeloom.ir.documents.validation import Document, Expected, Whole, wrong

from ..packaged import packaged
from .efficiency import Rate

WIDER = {"fp4": "fp8", "fp8": "bf16", "fp32": "bf16", "bf16": "fp16", "fp16": "bf16"}
"""For each precision, the one whose rate is used instead if a GPU has no units for the former."""
GPUS = {words["name"]: words for words in packaged(__package__, "gpus.json")}
"""Presets by name: the keys that a GPU has in a cluster file, with their values."""


class Gpu(Document):
    """A GPU.

    ``teraflops``: peak without sparsity by precision (``fp32``, ``bf16``, ``fp16``, ``fp8``,
    ``fp4``; ``bf16`` and ``fp16`` each default to the other). ``memory_gib``: memory that a process
    can allocate. ``gigabytes_per_second``: bandwidth of its memory. ``multiprocessors``: number of
    multiprocessors. ``source``: where these values are published.
    """

    model_config = ConfigDict(frozen=True)

    name: Annotated[str, Expected("a name")]
    teraflops: Annotated[dict[str, Annotated[float, Rate()]], Expected("an object of numbers > 0")]
    memory_gib: Annotated[float, Rate()]
    gigabytes_per_second: Bandwidth
    multiprocessors: Annotated[int, Whole(1, 10**6)]
    source: str = ""

    @field_validator("teraflops")
    @classmethod
    def _of_precisions(cls, rates: dict[str, float]) -> dict[str, float]:
        if not rates.keys() <= WIDER.keys() or rates.keys().isdisjoint({"bf16", "fp16"}):
            raise wrong(f"numbers > 0 by precision ({', '.join(WIDER)}), bf16 or fp16 among them")
        return rates

    def peak(self, precision: str) -> float:
        """Return the peak in TFLOP/s without sparsity. If the GPU has no units for ``precision``,
        the peak of the next wider precision is returned."""
        found = self.teraflops.get(precision)
        return self.peak(WIDER[precision]) if found is None else found

    def has(self, precision: str) -> bool:
        """Return whether the GPU has units for ``precision``. A GPU with bf16 also has fp16."""
        return precision in self.teraflops or (precision == "fp16" and "bf16" in self.teraflops)
