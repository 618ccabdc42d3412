"""Loss scaling: prevents gradients that are too small for 16 bits from becoming zero."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeloom.ir.errors import InputError


@dataclass(frozen=True, slots=True)
class LossScale:
    """A factor by which all losses are multiplied; it adapts as in ``torch.amp.GradScaler``.

    If a step has NaN or Inf in its gradients, it is skipped, and ``scale`` is multiplied by
    ``backoff``. After ``interval`` consecutive steps with finite gradients, counted by ``good``, it
    is multiplied by ``growth``. Values of ``scale`` that are powers of two cause no rounding.
    Raises InputError for a value out of range.
    """

    scale: float = 65536.0
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000
    good: int = 0

    def __post_init__(self) -> None:
        ranges = {
            "scale": (self.scale > 0, "more than 0"),
            "growth": (self.growth >= 1, "at least 1"),
            "backoff": (0 < self.backoff <= 1, "more than 0 and at most 1"),
            "interval": (self.interval >= 1, "at least 1"),
        }
        for name, (right, expected) in ranges.items():
            if not right:
                raise InputError(
                    f"loss_scale: {name}: expected {expected}, got {getattr(self, name)}"
                )

    def after(self, finite: bool) -> LossScale:
        """Returns the loss scale of the next step.

        ``finite``: whether the gradients of the last step had neither NaN nor Inf.
        """
        if not finite:
            return replace(self, scale=self.scale * self.backoff, good=0)
        if self.good + 1 < self.interval:
            return replace(self, good=self.good + 1)
        return replace(self, scale=self.scale * self.growth, good=0)
