"""The dtypes in which parameters are kept, computed with and summed."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pipeloom.ir.errors import InputError

from .flat_parameters import ALIGNMENT


@dataclass(frozen=True, slots=True)
class MixedPrecision:
    """``master``: of the parameters as the owner steps them, and of the sums of their gradients on
    each rank; ``param``: of those that are computed with and sent; ``reduce``: of gradients that
    are sent or summed over ranks.
    """

    master: torch.dtype
    param: torch.dtype
    reduce: torch.dtype

    @property
    def mixed(self) -> bool:
        """Whether the parameters that are computed with are no masters."""
        return self.param != self.master

    @property
    def spacing(self) -> int:
        """Elements to which parameters are aligned in flat tensors, alike in every dtype."""
        return max(1, ALIGNMENT // min(d.itemsize for d in (self.master, self.param, self.reduce)))


def check_floating(**dtypes: torch.dtype | None) -> None:
    """Raises InputError, naming the argument, for a dtype that is not floating."""
    for name, dtype in dtypes.items():
        if dtype is not None and not dtype.is_floating_point:
            raise InputError(f"{name}: expected a floating dtype, got {dtype}")
