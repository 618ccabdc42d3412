"""F that keeps a part of what B and W need, and R that makes the rest.

::

    F   inputs ──▶ results, kept
    R   inputs, kept ──▶ (of the last stage outputs, for its loss,) saved
    B   as without

A level is named by what it holds: ``41%`` is the choice that takes least time of those that hold at
most 41 percent of what F saves. Of the same stage and shapes it is the same choice everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from torch import fx

from ..cut import Cut, Piece, cut_forward
from ..functions import Function
from ..joint import Role
from .front import Front, KeptValues

MakeFunction = Callable[[Piece, Sequence[fx.Node]], Function]


class PartFunctions:
    """The functions of one level: ``forward`` gives results and what is kept, ``again`` takes the
    tensors of the microbatch and what was kept; ``held``: bytes of that."""

    def __init__(
        self, cut: Cut, made: Sequence[fx.Node], choice: KeptValues, make: MakeFunction
    ) -> None:
        self._pieces = cut_forward(cut, choice.kept, made)
        self._make, self.held = make, choice.held

    @cached_property
    def forward(self) -> Function:
        """F: results and what is kept."""
        piece = self._pieces[0]
        return self._make(piece, piece.outputs)

    @cached_property
    def again(self) -> Function:
        """R: of the last stage its outputs, then what F saves."""
        piece = self._pieces[1]
        return self._make(piece, piece.outputs)


class StageLevels:
    """The levels of a stage; ``last``: it is the last one, whose loss R computes again."""

    def __init__(self, cut: Cut, make: MakeFunction, *, last: bool) -> None:
        self._cut, self._make = cut, make
        outputs = [node for node, _ in cut.joint.of(Role.OUTPUT)] if last else []
        self._made = [*outputs, *cut.saved]
        self._parts: dict[str, PartFunctions] = {}

    @cached_property
    def front(self) -> Front:
        """The choices that there are."""
        return Front(self._cut, self._made)

    def names(self, count: int) -> list[str]:
        """The names of at most ``count`` levels, the one that holds most first."""
        return [f"{share}%" for share in self.front.shares(count)]

    def share_of_time(self, name: str) -> float:
        """The counted time of a level's R, relative to that of a whole forward."""
        return self.front.within(_percent(name)).time / max(1, self.front.total)

    def __getitem__(self, name: str) -> PartFunctions:
        if name not in self._parts:
            choice = self.front.within(_percent(name))
            self._parts[name] = PartFunctions(self._cut, self._made, choice, self._make)
        return self._parts[name]


def _percent(name: str) -> int:
    return int(name.removesuffix("%"))
