"""GPUs by name, with the peaks that their makers publish.

Dense rates, with accumulation in float32 for consumer cards; memory is what a process can
allocate. A gigabyte is 10^9 bytes, a GiB 2^30.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, field_validator

from pipeloom.ir.formats.fields import Bandwidth
from pipeloom.ir.formats.validation import Document, Expected, Whole, wrong

from ..packaged import packaged
from .efficiency import Rate

WIDER = {"fp4": "fp8", "fp8": "bf16", "fp32": "bf16", "bf16": "fp16", "fp16": "bf16"}
"""The precisions of a GPU, each with the one whose rate counts where it has no units for it."""
GPUS = {words["name"]: words for words in packaged(__package__, "gpus.json")}
"""Presets by name, as in a cluster file."""


class Gpu(Document):
    """One device. ``teraflops``: dense peak by precision (``fp32``, ``bf16``, ``fp8``, ``fp4``;
    where ``fp16`` is not named it is as fast as bf16); ``memory_gib``: what a process can allocate;
    ``gigabytes_per_second``: of its memory; ``multiprocessors``: what blocks of a kernel are dealt
    to. ``source``: where that is published.
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
        """Dense peak in teraflops; of the next wider precision where it has none of its own."""
        found = self.teraflops.get(precision)
        return self.peak(WIDER[precision]) if found is None else found

    def has(self, precision: str) -> bool:
        """Whether it has units for a precision: fp16 where it has bf16."""
        return precision in self.teraflops or (precision == "fp16" and "bf16" in self.teraflops)
