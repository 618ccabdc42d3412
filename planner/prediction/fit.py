"""Calibration: the curves' parameters by regularized least squares on logarithms.

The objective is the sum of squares of log(predicted / measured) divided by its noise, plus that of
each parameter's logarithm divided by its prior's spread. It is minimized by Gauss-Newton with
numerical derivatives; outliers count linearly (Huber, 1964). A parameter that the measurements do
not determine keeps its prior.

If at least :data:`ROWS` rows share the shape of a layer (its widths, the microbatch, the sequence,
tensor parallelism ...), the ratio of measured to calculated time of that shape is another
parameter: such layers are measured indirectly, and smooth curves cannot capture how libraries
handle a particular shape.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeloom.ir.model.ops import FloatArray

from ..clusters.efficiency import Efficiency, priors
from ..models.work import WorkKind
from .measured_rows import MeasuredRow
from .memory import fullest
from .step import Memo, StepTimes

ROWS = 3
"""Minimum number of rows with a layer's shape for a factor of its own."""
SHAPE_SPREAD = {WorkKind.HEAD: 0.4}
LAYER_SPREAD = 0.15
"""Prior standard deviation of the log of a shape's factor. For a head, whose kernels differ more
between libraries: :data:`SHAPE_SPREAD`."""
NOISE, UNSHAPED, HUBER = 0.02, 0.06, 2.0
"""Relative noise of a predicted time if all shapes have a factor, and if one has none. Residuals
above HUBER times the noise count linearly."""
FORMER, USUAL_SPREAD = 2, 0.15
"""Prior for the spread of residuals: this number of pseudo-rows with this standard deviation."""
MEMORY_NOISE = 0.03
"""Relative noise of a measured memory peak."""
STEP, CLOSE, ROUNDS = 1e-3, 1e-2, 12
"""Step of numerical derivatives; relative decrease of the loss below which iterations stop; maximum
number of iterations."""


def predicted(rows: Sequence[MeasuredRow], efficiency: Efficiency) -> FloatArray:
    """The predicted step times of rows, in milliseconds, (N,)."""
    memo: Memo = {}
    return np.array([StepTimes(row.setup, row.reaching(efficiency), memo).time for row in rows])


def with_memory(rows: Sequence[MeasuredRow], efficiency: Efficiency) -> Efficiency:
    """The efficiency with memory overhead fitted to the rows whose memory was measured."""
    known = [(row, row.memory_gib) for row in rows if row.memory_gib is not None]
    measured = np.log([size for _, size in known])
    bare = efficiency.model_copy(update={"fragmentation": 0.0, "context_gib": 0.0})
    tensors = np.array([peak_gib(row, bare) for row, _ in known])
    found = priors(memory=True)
    typical, spread, most = map(np.array, zip(*found.values(), strict=True))
    usual = np.log(typical)
    x = usual.copy()
    for _ in range(ROUNDS):
        share, context = np.exp(x)
        total = tensors * (1 + share) + context
        jacobian = np.stack([tensors * share / total, context / total], axis=1) / MEMORY_NOISE
        residuals = (np.log(total) - measured) / MEMORY_NOISE
        matrix = jacobian.T @ jacobian + np.diag(1 / spread**2)
        x -= np.linalg.solve(matrix, jacobian.T @ residuals + (x - usual) / spread**2)
    values = np.minimum(np.exp(x), most).tolist()
    return efficiency.model_copy(update=dict(zip(found, values, strict=True)))


def peak_gib(row: MeasuredRow, efficiency: Efficiency) -> float:
    """Memory of the fullest device, in GiB."""
    return fullest(StepTimes(row.setup, row.reaching(efficiency)))


class Fit:
    """The fit of the efficiency to rows that are all of one GPU.

    The unknowns are logarithms: of the curves' parameters, then one per shape.
    """

    def __init__(self, rows: Sequence[MeasuredRow], shapes: bool) -> None:
        self.rows = rows
        self.measured = np.log([row.step_ms for row in rows])
        usual, spread, self.most = map(np.array, zip(*priors(memory=False).values(), strict=True))
        self.names = list(priors(memory=False))
        self.of_shape = self._shapes() if shapes else {}
        shaped = {i for mine in self.of_shape.values() for i in mine}
        self.noise = np.array([NOISE if i in shaped else UNSHAPED for i in range(len(rows))])
        self.prior = np.array([*np.log(usual), *np.zeros(len(self.of_shape))])
        self.spread = np.array([*spread, *map(_shape_spread, self.of_shape)])

    def _shapes(self) -> dict[str, list[int]]:
        """The indices of the rows of each shape that at least :data:`ROWS` rows share."""
        found: dict[str, list[int]] = {}
        for i, row in enumerate(self.rows):
            for shape in row.setup.shapes:
                found.setdefault(shape, []).append(i)
        return {shape: mine for shape, mine in sorted(found.items()) if len(mine) >= ROWS}

    def run(self) -> tuple[Efficiency, FloatArray]:
        """The efficiency, and log(predicted / measured) of each row."""
        x, last = self.prior.copy(), np.inf
        residuals = self._residuals(x, range(len(self.rows)))
        for _ in range(ROUNDS):
            move = self._move(x, residuals)
            x = self._bounded(x + move * min(1.0, 0.7 / max(np.abs(move).max(), 1e-9)))
            residuals = self._residuals(x, range(len(self.rows)))
            loss = self._loss(x, residuals)
            if last - loss < CLOSE * loss:
                break
            last = loss
        found = self._with_spread(self._efficiency(x), x, residuals)
        return with_memory(self.rows, found), residuals

    def _with_spread(self, found: Efficiency, x: FloatArray, residuals: FloatArray) -> Efficiency:
        """The efficiency with the spread of residuals; for unmeasured shapes, at least the scatter
        of factors."""
        shaped = self.noise == NOISE
        elsewhere = [_spread(residuals[~shaped]), _scatter(x[len(self.names) :])]
        spreads = {"spread": _spread(residuals[shaped]), "spread_elsewhere": max(elsewhere)}
        return found.model_copy(update=spreads)

    def _loss(self, x: FloatArray, residuals: FloatArray) -> float:
        """The loss: Huber's over rows, plus the priors'."""
        off = np.abs(residuals) / self.noise
        rows = np.where(off < HUBER, off**2, 2 * HUBER * off - HUBER**2)
        return float(rows.sum() + (((x - self.prior) / self.spread) ** 2).sum())

    def _move(self, x: FloatArray, residuals: FloatArray) -> FloatArray:
        """The Gauss-Newton step."""
        jacobian = self._jacobian(x, residuals)
        far = np.maximum(1.0, np.abs(residuals) / (HUBER * self.noise))
        weight = 1 / (self.noise**2 * far)
        matrix = (jacobian.T * weight) @ jacobian + np.diag(1 / self.spread**2)
        gradient = (jacobian.T * weight) @ residuals + (x - self.prior) / self.spread**2
        found: FloatArray = -np.linalg.solve(matrix, gradient)
        return found

    def _jacobian(self, x: FloatArray, residuals: FloatArray) -> FloatArray:
        every = range(len(self.rows))
        touched = [every] * len(self.names) + list(self.of_shape.values())
        result = np.zeros((len(self.rows), len(x)))
        for i, mine in enumerate(touched):
            moved = x.copy()
            moved[i] -= STEP  # downwards, as a parameter may be at its maximum
            result[mine, i] = (residuals[mine] - self._residuals(moved, mine)) / STEP
        return result

    def _residuals(self, x: FloatArray, mine: Sequence[int]) -> FloatArray:
        times = predicted([self.rows[i] for i in mine], self._efficiency(x))
        found: FloatArray = np.log(times) - self.measured[mine]
        return found

    def _bounded(self, x: FloatArray) -> FloatArray:
        x[: len(self.most)] = np.minimum(x[: len(self.most)], np.log(self.most))
        return x

    def _efficiency(self, x: FloatArray) -> Efficiency:
        values = np.exp(x).tolist()
        curves = dict(zip(self.names, values, strict=False))
        shapes = dict(zip(self.of_shape, values[len(self.names) :], strict=True))
        return Efficiency().model_copy(update={**curves, "shapes": shapes})


def _shape_spread(shape: str) -> float:
    return SHAPE_SPREAD.get(WorkKind(shape.partition(" ")[0]), LAYER_SPREAD)


def _scatter(factors: FloatArray) -> float:
    return float(np.sqrt(np.mean(factors**2))) if len(factors) else 0.0


def _spread(residuals: FloatArray) -> float:
    """The 68 % quantile of absolute residuals, combined with :data:`FORMER` pseudo-rows of the
    prior."""
    count = len(residuals)
    middle = max(NOISE, float(np.quantile(np.abs(residuals), 0.68))) if count else 0.0
    return float(np.sqrt((FORMER * USUAL_SPREAD**2 + count * middle**2) / (FORMER + count)))
