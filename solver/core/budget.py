"""The budget of one piece of work: seconds, or simulated ops where those are counted instead."""

from __future__ import annotations

from math import inf

from .stopping import FirstOf, InterruptFlag, TimeLimit, WorkLimit

OPS_A_SECOND = 1e8  # roughly what the simulator does on one core


class Budget(FirstOf):
    """``time`` runs from the moment it is made, ``work`` is counted as it is spent.

    The budget is over where either has come to its end, or ``interrupt`` is raised.
    """

    def __init__(
        self, seconds: float = inf, ops: float = inf, interrupt: InterruptFlag | None = None
    ) -> None:
        self.time, self.work = TimeLimit(seconds), WorkLimit(ops)
        self.interrupt = interrupt or InterruptFlag()
        super().__init__(self.time, self.work, self.interrupt)

    def share(self, share: float = 1.0) -> Budget:
        """A budget of a share of this one as it was at first, from now on."""
        return Budget(share * self.time.seconds, share * self.work.ops, self.interrupt)
