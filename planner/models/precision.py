"""Number formats of a run: bytes per element of an activation and of a matrix product's operand."""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class Precision(StrEnum):
    """The format in which a run computes matrix products.

    ``fp8`` has one scale per tensor, ``mxfp8`` one byte of scale per 32 numbers (OCP Microscaling
    Formats 1.0, 2023, table 1), and ``nvfp4`` one byte per 16. With these three, only the operands
    of the layers' matrix products are in that format; everything else, including embedding and
    head, is bf16. Spellings in published measurements, such as ``float8`` and ``FP8-CS``, are
    accepted.
    """

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    MXFP8 = "mxfp8"
    NVFP4 = "nvfp4"

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        word = str(value).lower().replace("-", "").replace("_", "")
        word = word.removesuffix("cs").removesuffix("ds").replace("bfloat", "bf")
        return cls._value2member_map_.get(word.replace("float", "fp"))  # type: ignore[return-value]

    @property
    def element_bytes(self) -> float:
        """Bytes per element of an activation, a weight or a message."""
        return 4.0 if self is Precision.FP32 else 2.0

    @property
    def operand_bytes(self) -> float:
        """Bytes per element of a matrix product's operand, including its share of the scales."""
        narrow = {Precision.FP8: 1.0, Precision.MXFP8: 1 + 1 / 32, Precision.NVFP4: 0.5 + 1 / 16}
        return narrow.get(self, self.element_bytes)

    @property
    def is_narrow(self) -> bool:
        """Whether operands are narrower than activations."""
        return self.operand_bytes < self.element_bytes

    @property
    def wide(self) -> Precision:
        """The format of everything except the operands of narrow matrix products.

        It is bf16 if this format has less than 16 bits, otherwise this format.
        """
        return Precision.BF16 if self.is_narrow else self

    @property
    def units(self) -> str:
        """The name of this format's rate in the ``teraflops`` of a GPU in a cluster file."""
        return {Precision.MXFP8: "fp8", Precision.NVFP4: "fp4"}.get(self, self.value)
