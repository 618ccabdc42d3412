"""The ops that a rank with several stages can have run, or left to run, at moments of each stage.

Let s_1 < s_2 < ... be the rank's stages, Z_i the M_B of s_1 to s_i.

- *Before the first B of s_i* no B of s_1 to s_i has run, so that all their chunks are held. A
  microbatch that has come as far as F(s_q), q <= i, holds Z_q. One that has started F(s_(i+1))
  may be through with all higher stages; when the last of n such starts that F, all n hold Z_i, and
  beside these there is M_B of s_(i+1).
- *After the last F of s_i has started* no F of s_1 to s_i is left. A microbatch whose B's are to
  come from s_q, q <= i, down to s_1 holds Z_q; one whose W alone is to come M_W. One that has
  B(s_(i+1)) to come may have all of the higher stages to run; when the first of n such starts
  that B, all n hold Z_i, and beside these there is M_B of s_(i+1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeloom.ir.model.ops import FloatArray

from ...core.tolerances import counts_within
from ..rank_model import RankModel, beside_one_stage, best_fraction, filled, most


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class HostModel(RankModel):
    """Rank ``rank``, which has ``stages``, the lowest first; the arrays are by these."""

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
        """Z_i, (K,)."""
        return np.asarray(self.m_b.cumsum())

    def all_fit(self, i: int) -> bool:
        """Whether memory may hold all F's of s_1 to s_i, so that the last need not wait for a B."""
        return self.count * float(self.held_up_to[i]) <= self.limit

    def before_first_backward(self, i: int) -> float:
        """The most time of ops that the rank can run before its first B of s_i."""
        found = self._most(self.f[: i + 1].cumsum(), i, self.limit, self.beyond(i))
        return found if i + 1 < len(self.f) else min(found, self.forwards())

    def own(self, i: int) -> float:
        """The time of what the microbatch of the last F of s_i has left to run then."""
        return float(self.f[i] + (self.b + self.w)[: i + 1].sum()) + self._higher(i)

    def beside_last_forward(self, i: int) -> float:
        """The most time of what the others have left to run when the last F of s_i starts."""
        left = self.limit - float(self.held_up_to[i])
        if len(self.f) == 1:
            sizes = float(self.m_b[0]), float(self.m_w[0])
            return beside_one_stage(float(self.b[0]), float(self.w[0]), *sizes, left, self.count)
        times = (self.b + self.w)[: i + 1].cumsum()
        found = self._most(times, i, left, self.beyond(i) - 1, weights=True)
        return found if i + 1 < len(self.f) else min(found, self._chunks_left(left))

    def _chunks_left(self, room: float) -> float:
        """The same of the highest stage, chunk by chunk: at most as many of each as there are."""
        times, sizes = np.append(self.b + self.w, self.w), np.append(self.m_b, self.m_w)
        return most(times, sizes, room, self.count - 1)

    def _higher(self, i: int) -> float:
        """The time of one microbatch's ops of the stages above s_i."""
        return float((self.f + self.b + self.w)[i + 1 :].sum())

    def beyond(self, i: int) -> float:
        """The most microbatches that may be through with higher stages while s_i holds them."""
        if i + 1 == len(self.stages):
            return 0.0
        room = self.limit - self.m_b[i + 1]
        return float(counts_within(room, self.held_up_to[i], self.count))

    def _most(
        self, times: FloatArray, i: int, room: float, beyond: float, *, weights: bool = False
    ) -> float:
        """The most time within ``room``: of so many stages each of ``times``, of all and the
        higher ones ``beyond`` times at most; and of W's alone."""
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
