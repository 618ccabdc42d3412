"""Orders of real microbatches from steps of classes, in which microbatches are turns."""

from __future__ import annotations

from collections.abc import Sequence

from pipeloom.ir.model.ops import Op, OpKind

from .tables import MicrobatchClass


class Orders:
    """Each rank's ops of real microbatches, built move by move; ``pairs`` are places of pairs.

    F's take the first microbatch that is there, or the one that they wait for. B's go in the order
    of F's on the last stage of their way, as all F's of so many have run then; a W's B is the
    earliest whose W has not run.
    """

    def __init__(self, ranks: int, classes: Sequence[MicrobatchClass]) -> None:
        self._classes = classes
        self.rows: list[list[Op]] = [[] for _ in range(ranks)]
        self.pairs: list[list[int]] = [[] for _ in range(ranks)]
        self._forwards: list[list[int]] = [[] for _ in self._classes]
        self._backwards = [0 for _ in self._classes]
        self._waiting: list[list[int]] = [[] for _ in self._classes]

    def add(self, parts: Sequence[int], wait: int) -> None:
        """``wait``: how many inputs later than its turn's an F waits for."""
        f, b, w = map(int, parts)
        row = self.rows[self._classes[max(f, b, w)].rank]
        if f >= 0 and b >= 0:
            self.pairs[self._classes[f].rank].append(len(row))
        if f >= 0:
            row.append(Op(OpKind.F, self._classes[f].stage, self._forward(f, wait)))
        if b >= 0:
            microbatch = self._backward(b)
            if w < 0:
                self._waiting[b].append(microbatch)
            kind = OpKind.B if w < 0 else OpKind.BW
            row.append(Op(kind, self._classes[b].stage, microbatch))
        elif w >= 0:
            row.append(Op(OpKind.W, self._classes[w].stage, self._waiting[w].pop(0)))

    def _forward(self, c: int, wait: int) -> int:
        came = self._forwards[c - 1] if self._classes[c].stage else self._classes[c].microbatches
        left = [j for j in came if j not in self._forwards[c]]
        last = came[len(self._forwards[c]) + wait]
        microbatch = last if wait and last in left else left[0]
        self._forwards[c].append(microbatch)
        return microbatch

    def _backward(self, c: int) -> int:
        way = [k for k, each in enumerate(self._classes) if each.way == self._classes[c].way]
        self._backwards[c] += 1
        return self._forwards[way[-1]][self._backwards[c] - 1]
