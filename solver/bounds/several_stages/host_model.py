"""Bounds on the ops that a rank with several stages can run by moments of each stage.

Let s_1 < s_2 < ... be the stages of the rank, and Z_i the sum of M_B over s_1 to s_i.

- *Before the first B of s_i* no B of s_1 to s_i has run, so every F of these stages that has run
  still holds its M_B. A microbatch whose last F was on s_q, q <= i, holds Z_q. One that has started
  F(s_(i+1)) may have run on all higher stages as well. If n microbatches have started that F, then
  at the last of these starts all n hold Z_i, and the last one also M_B of s_(i+1).
- *After the last F of s_i has started* no F of s_1 to s_i is left to start. A microbatch whose B's
  of s_q down to s_1 are to come, q <= i, holds Z_q; one with only a W to come holds M_W. One whose
  B(s_(i+1)) is to come may have ops on all higher stages left. If there are n of these, then when
  the first of them starts that B, all n hold Z_i, and the first one also holds M_B of s_(i+1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeloom.ir.model.ops import FloatArray

from ...core.tolerances import counts_within
from ..rank_model import RankModel, best_fraction, filled


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class HostModel(RankModel):
    """A rank with several ``stages``, in ascending order; arrays are by stage, shape (K,).

    ``rank``: the number of the rank.
    """

    rank: int
    stages: tuple[int, ...]

    @property
    def lowest(self) -> int:
        return self.stages[0]

    @property
    def highest(self) -> int:
        return self.stages[-1]

    @property
    def held_up_to(self) -> FloatArray:
        """For each stage s_i of the rank, the sum Z_i of M_B over s_1 to s_i, shape (K,)."""
        return np.asarray(self.m_b.cumsum())

    def before_first_backward(self, i: int) -> float:
        """Upper bound on the time of the ops that the rank can run before the first B of stage s_i.

        ``i``: the index of the stage on the rank, which must not be its last.
        """
        return self._most(self.f[: i + 1].cumsum(), i, self.limit, self._beyond(i))

    def own(self, i: int) -> float:
        """The work that a microbatch has left on the rank when its F on stage s_i starts.

        The work includes that F, which must be the last F of the stage. ``i``: the index of the
        stage on the rank.
        """
        return float(self.f[i] + (self.b + self.w)[: i + 1].sum()) + self._higher(i)

    def beside_last_forward(self, i: int) -> float:
        """Upper bound on the work that other microbatches have left when the last F on s_i starts.

        Other microbatches are all except that of this F. ``i``: the index of the stage on the rank.
        """
        left = self.limit - float(self.held_up_to[i])
        times = (self.b + self.w)[: i + 1].cumsum()
        return self._most(times, i, left, self._beyond(i) - 1, weights=True)

    def _higher(self, i: int) -> float:
        """The total time of one microbatch's ops on the rank's stages above s_i."""
        return float((self.f + self.b + self.w)[i + 1 :].sum())

    def _beyond(self, i: int) -> float:
        """The maximum number of microbatches above stage s_i of the rank at the same time.

        These have started their F, or still have to run their B, on the rank's next stage, and hold
        M_B on s_1 to s_i. ``i``: the index of s_i on the rank.
        """
        room = self.limit - self.m_b[i + 1]
        return float(counts_within(room, self.held_up_to[i], self.count))

    def _most(
        self, times: FloatArray, i: int, room: float, beyond: float, *, weights: bool = False
    ) -> float:
        """Upper bound on the total time of microbatches that fit into memory of size ``room``.

        It is the optimum of the fractional knapsack. Let Z_q be the sum of M_B over the rank's
        stages 0 to q. For each q <= i, at most ``count`` microbatches hold Z_q and take
        ``times[q]``. At most ``beyond`` further ones hold Z_i, and take ``times[i]`` plus the time
        of all ops on higher stages. With ``weights``, single W's, which hold M_W, are items as
        well; without, they are not.
        """
        if room < 0:
            return 0.0
        own, sizes = self.m_b, self.held_up_to[: i + 1]
        times = np.append(times, times[-1] + self._higher(i))
        sizes = np.append(sizes, sizes[-1])
        counts = np.append(np.full(i + 1, float(self.count)), max(0.0, beyond))
        if weights:
            own = np.append(own, self.m_w)
            times, sizes = np.append(times, self.w), np.append(sizes, self.m_w)
            counts = np.append(counts, np.full(len(self.w), float(self.count)))
        room = min(filled(own, room), filled(sizes, room))
        return best_fraction(times, sizes, room, counts)
