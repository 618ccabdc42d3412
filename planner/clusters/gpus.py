"""GPUs by name, with the peaks that their makers publish.

Dense rates, with accumulation in float32 for consumer cards; memory is what a process can
allocate. A gigabyte is 10^9 bytes, a GiB 2^30.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

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


_VOLTA = {"fp32": 15.7, "fp16": 125.0}
_A100 = "NVIDIA A100 Tensor Core GPU datasheet, 2021"
_H100 = "NVIDIA H100 Tensor Core GPU datasheet, 2023"
_H200 = "NVIDIA H200 Tensor Core GPU datasheet, 2024"
_B200 = "NVIDIA Blackwell architecture technical brief, 2024"
_GB300 = "NVIDIA GB300 NVL72 datasheet, 2025"
_GH200 = "NVIDIA GH200 Grace Hopper Superchip datasheet, 2023"
_ADA = "NVIDIA Ada GPU architecture whitepaper, 2023"


def _gpu(  # noqa: PLR0917
    name: str, rates: tuple[float, ...], memory: float, bandwidth: float, units: int, source: str
) -> Gpu:
    """``rates``: of fp32, bf16, fp8 and fp4, as far as there are units for them."""
    teraflops = dict(zip(PRECISIONS, rates, strict=False))
    return Gpu(name, teraflops, memory, bandwidth, units, source)


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("V100-16GB", _VOLTA, 15.8, 900, 80, "NVIDIA V100 datasheet, 2020"),
        Gpu("V100-32GB", _VOLTA, 31.7, 900, 80, "NVIDIA V100 datasheet, 2020"),
        _gpu("A100-40GB", (19.5, 312), 39.4, 1555, 108, _A100),
        _gpu("A100-80GB", (19.5, 312), 79.2, 2039, 108, _A100),
        _gpu("H100", (67, 989, 1979), 79.1, 3350, 132, _H100),
        _gpu(
            "H100-96GB-500W", (67, 989, 1979), 95.0, 2400, 132, _H100 + "; HBM2e, limited to 500 W"
        ),
        _gpu("H200", (67, 989, 1979), 139.8, 4800, 132, _H200),
        _gpu("GH200-96GB", (67, 989, 1979), 95.0, 4000, 132, _GH200),
        _gpu("GH200-144GB", (67, 989, 1979), 141.0, 4900, 132, _GH200),
        _gpu("B200", (75, 2250, 4500, 9000), 178.3, 7700, 148, _B200),
        _gpu("B300", (75, 2250, 4500, 13500), 268.0, 7700, 148, _GB300),
        _gpu("GB200", (80, 2500, 5000, 10000), 184.0, 8000, 148, _B200),
        _gpu("GB300", (80, 2500, 5000, 15000), 276.0, 8000, 148, _GB300),
        _gpu("MI250X", (47.9, 383), 128.0, 3277, 220, "AMD Instinct MI250X data sheet, 2021"),
        _gpu("MI300X", (163.4, 1307, 2615), 191.5, 5300, 304, "AMD MI300X data sheet, 2023"),
        _gpu("MI325X", (163.4, 1307, 2615), 255.5, 6000, 304, "AMD MI325X data sheet, 2024"),
        _gpu("MI355X", (157.3, 2500, 5000, 10000), 287.5, 8000, 256, "AMD MI355X brochure, 2025"),
        _gpu("L40S", (91.6, 362, 733), 44.5, 864, 142, "NVIDIA L40S datasheet, 2023"),
        _gpu("RTX-3090", (35.6, 71), 23.7, 936, 82, "NVIDIA Ampere GA102 whitepaper, 2021"),
        _gpu("RTX-4090", (82.6, 165, 330), 23.6, 1008, 128, _ADA),
        _gpu("RTX-5090", (104.8, 209, 419, 1676), 31.4, 1792, 170, "NVIDIA RTX Blackwell, 2025"),
    )
}
"""Presets by name."""
