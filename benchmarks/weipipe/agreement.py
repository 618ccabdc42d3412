"""How far the predictions agree with the published tables, and what that hangs on."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from .assumptions import BASE, Assumptions, variations
from .cells import Row, load_rows
from .predict import FAMILY, Prediction, predict


@dataclass(frozen=True, slots=True)
class Compared:
    """One published row beside its predictions, by scheme."""

    row: Row
    found: dict[str, Prediction]

    @property
    def winner(self) -> str:
        """The fastest of those that are predicted to fit."""
        fitting = {name: cell.throughput for name, cell in self.found.items() if cell.fits}
        return max(fitting, key=lambda name: fitting[name], default="none")

    @property
    def right(self) -> bool:
        return self.winner == self.row.winner

    def memory_right(self, scheme: str) -> bool:
        """Whether it is predicted to fit where it did, and not to where it did not."""
        return self.found[scheme].fits == (self.row.throughput[scheme] is not None)

    def error(self, scheme: str) -> float | None:
        """Predicted over published throughput, less 1; None where it ran out of memory."""
        published = self.row.throughput[scheme]
        return None if published is None else self.found[scheme].throughput / published - 1.0

    def memory_error(self, scheme: str) -> float | None:
        """The same of memory; None where none is published."""
        published = self.row.memory.get(scheme)
        return None if published is None else self.found[scheme].memory / published - 1.0


@dataclass(frozen=True, slots=True)
class Agreement:
    """``winners`` of 21 rows and ``memory`` of 105 cells right; ``error``: the median of those of
    size."""

    winners: int
    memory: int
    error: float

    @classmethod
    def of(cls, compared: list[Compared]) -> Agreement:
        errors = [
            abs(e) for one in compared for name in FAMILY if (e := one.error(name)) is not None
        ]
        return cls(
            sum(one.right for one in compared),
            sum(one.memory_right(name) for one in compared for name in FAMILY),
            median(errors),
        )


def compare(given: Assumptions = BASE) -> list[Compared]:
    return [
        Compared(row, {name: predict(row, name, given) for name in FAMILY}) for row in load_rows()
    ]


def sensitivity() -> list[tuple[str, Agreement]]:
    """The agreement with each assumption changed alone."""
    return [(words, Agreement.of(compare(given))) for words, given in variations()]
