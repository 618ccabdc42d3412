"""The dtypes in which parameters are stored, computed with and reduced."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pipeloom.ir.errors import InputError


@dataclass(frozen=True, slots=True)
class MixedPrecision:
    """The dtypes of a stage's parameters and gradients.

    ``master``: the dtype of the parameters that the optimizer updates, and of the gradients that a
    rank sums over microbatches. ``param``: the dtype of the parameters that ops use and that are
    sent. ``reduce``: the dtype of gradients that are sent or summed over ranks.
    """

    master: torch.dtype
    param: torch.dtype
    reduce: torch.dtype

    @property
    def mixed(self) -> bool:
        """Whether ops use parameters of another dtype than those that the optimizer updates."""
        return self.param != self.master


def check_floating(**dtypes: torch.dtype | None) -> None:
    """Raises InputError if a dtype is not floating-point; the message names the argument."""
    for name, dtype in dtypes.items():
        if dtype is not None and not dtype.is_floating_point:
            raise InputError(f"{name}: expected a floating dtype, got {dtype}")
