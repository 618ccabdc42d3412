"""Formats of numbers: how many bytes a held activation and an operand of a product take."""

from __future__ import annotations

from enum import StrEnum


class Precision(StrEnum):
    """The format that the matrix products of a run compute in.

    ``fp8`` has one scale a tensor; ``mxfp8`` one byte of scale for 32 numbers (OCP Microscaling
    Formats 1.0, 2023, table 1); ``nvfp4`` one byte for 16. With these, all but the operands of the
    products of layers (embedding and head aside) is bf16.
    """

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    MXFP8 = "mxfp8"
    NVFP4 = "nvfp4"

    @property
    def element_bytes(self) -> float:
        """Bytes of a number in an activation, a weight and a message."""
        return 4.0 if self is Precision.FP32 else 2.0

    @property
    def operand_bytes(self) -> float:
        """Bytes of a number that a product reads, its scale included."""
        narrow = {Precision.FP8: 1.0, Precision.MXFP8: 1 + 1 / 32, Precision.NVFP4: 0.5 + 1 / 16}
        return narrow.get(self, self.element_bytes)

    @property
    def is_narrow(self) -> bool:
        """Whether operands are narrower than activations."""
        return self.operand_bytes < self.element_bytes

    @property
    def wide(self) -> Precision:
        """The format of what is not narrow in such a run: bf16 for all below 16 bits."""
        return Precision.BF16 if self.is_narrow else self

    @property
    def units(self) -> str:
        """The word of a GPU's rates."""
        return {Precision.MXFP8: "fp8", Precision.NVFP4: "fp4"}.get(self, self.value)
