"""Calibration: the parameters of the efficiency curves, by regularized least squares on logarithms.

The objective has two terms: the sum of squares of log(predicted / measured) divided by its noise,
and the sum of squares of the logarithm of each parameter relative to its prior's median, divided by
the prior's spread. It is minimized by Gauss-Newton iterations with numerical derivatives; outliers
count linearly instead of squared (Huber, 1964). A parameter that the measurements do not determine
keeps the median of its prior.

If at least :data:`ROWS` rows have a layer of the same shape (its widths, the microbatch, the
sequence, tensor parallelism ...), the ratio of measured to calculated time of this shape is another
parameter: the rows measure such layers indirectly, and smooth curves cannot capture how libraries
handle a particular shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeloom.ir.model.ops import FloatArray

from ..clusters.efficiency import Efficiency, priors
from ..models.work import WorkKind
from .measured_rows import MeasuredRow
from .memory import fullest
from .rates import Rates
from .step import PredictedStep

ROWS = 3
"""Minimum number of rows with the same shape of layer for which this shape gets a factor of its
own."""
SHAPE_SPREAD = {WorkKind.HEAD: 0.4}
LAYER_SPREAD = 0.15
"""Prior standard deviation of the logarithm of a shape's factor. Heads, whose kernels differ more
between libraries, have the one in :data:`SHAPE_SPREAD`."""
NOISE, UNSHAPED, HUBER = 0.02, 0.06, 2.0
"""Relative noise of a predicted step time: ``NOISE`` if a shape of the row has a factor of its own,
``UNSHAPED`` if none has. Residuals above ``HUBER`` times the noise count linearly."""
FORMER, USUAL_SPREAD = 2, 0.15
"""Prior of the spread of residuals: it counts as ``FORMER`` further rows whose residuals have the
standard deviation ``USUAL_SPREAD``."""
MEMORY_NOISE = 0.03
"""Relative noise of a measured memory peak."""
STEP, CLOSE, ROUNDS = 1e-3, 1e-2, 12
"""``STEP``: step of numerical derivatives. ``CLOSE``: relative decrease of the loss below which the
fit to times stops. ``ROUNDS``: maximum number of iterations."""


def predicted(rows: Sequence[MeasuredRow], efficiency: Efficiency) -> FloatArray:
    """Return the predicted step times of ``rows``, (N,), in milliseconds. All rows must be of the
    same kind of GPU."""
    rates: dict[str, Rates] = {}
    return np.array([PredictedStep(row.setup, _rates(row, efficiency, rates)).time for row in rows])


def _rates(row: MeasuredRow, efficiency: Efficiency, known: dict[str, Rates]) -> Rates:
    if row.cluster.name not in known:
        known[row.cluster.name] = Rates(row.reaching(efficiency))
    return known[row.cluster.name]


def peak_gib(row: MeasuredRow, efficiency: Efficiency) -> float:
    """Return the predicted memory of the fullest device, in GiB."""
    return fullest(PredictedStep(row.setup, Rates(row.reaching(efficiency))))


@dataclass(frozen=True)
class LeastSquares:
    """A least-squares fit of unknowns x, (X,), to measurements, (N,); all values are logarithms.

    ``model(x, rows)``: returns the predictions for the rows with the indices ``rows``.
    ``measured``: the measurements. ``noise``: standard deviation of each measurement. ``prior``,
    ``spread``, ``most``: mean, standard deviation and maximum of each unknown. ``touched``: for
    each unknown, the indices of the rows that depend on it. ``close``: the relative decrease of the
    loss below which the iterations stop.
    """

    model: Callable[[FloatArray, Sequence[int]], FloatArray]
    measured: FloatArray
    noise: FloatArray
    prior: FloatArray
    spread: FloatArray
    most: FloatArray
    touched: Sequence[Sequence[int]]
    close: float = CLOSE

    def run(self) -> tuple[FloatArray, FloatArray]:
        """Return the fitted unknowns, (X,), and the residuals (predicted minus measured), (N,)."""
        every, last = range(len(self.measured)), np.inf
        x: FloatArray = self.prior.copy()
        residuals = self._residuals(x, every)
        for _ in range(ROUNDS):
            x = np.minimum(x + self._move(x, residuals), self.most)
            residuals = self._residuals(x, every)
            loss = self._loss(x, residuals)
            if last - loss < self.close * loss:
                break
            last = loss
        return x, residuals

    def _residuals(self, x: FloatArray, rows: Sequence[int]) -> FloatArray:
        found: FloatArray = self.model(x, rows) - self.measured[rows]
        return found

    def _loss(self, x: FloatArray, residuals: FloatArray) -> float:
        """Return the loss: Huber's loss over rows, plus the squared distances of unknowns from
        their priors."""
        off = np.abs(residuals) / self.noise
        rows = np.where(off < HUBER, off**2, 2 * HUBER * off - HUBER**2)
        return float(rows.sum() + (((x - self.prior) / self.spread) ** 2).sum())

    def _move(self, x: FloatArray, residuals: FloatArray) -> FloatArray:
        """Return the Gauss-Newton step, (X,), scaled down such that no unknown changes by more than
        0.7."""
        jacobian = self._jacobian(x, residuals)
        weight = 1 / (self.noise * np.maximum(self.noise, np.abs(residuals) / HUBER))
        matrix = (jacobian.T * weight) @ jacobian + np.diag(1 / self.spread**2)
        gradient = (jacobian.T * weight) @ residuals + (x - self.prior) / self.spread**2
        move: FloatArray = np.linalg.solve(matrix, gradient).astype(np.float64)
        return move * -min(1.0, 0.7 / max(float(np.abs(move).max()), 1e-9))

    def _jacobian(self, x: FloatArray, residuals: FloatArray) -> FloatArray:
        result = np.zeros((len(self.measured), len(x)))
        for i, rows in enumerate(self.touched):
            moved = x.copy()
            moved[i] -= STEP  # downwards, as a parameter may be at its maximum
            result[rows, i] = (residuals[rows] - self._residuals(moved, rows)) / STEP
        return result


def fitted(rows: Sequence[MeasuredRow], *, shapes: bool) -> tuple[Efficiency, FloatArray]:
    """Return the efficiency fitted to ``rows``, all of which were measured on the same kind of GPU,
    and log(predicted / measured) of each row's step time, (N,).

    ``shapes``: whether shapes of layers that occur in several rows get a factor of their own.
    """
    every, curves = range(len(rows)), priors(memory=False)
    usual, spread, most = np.array([*curves.values()]).T
    of_shape = _shapes(rows) if shapes else {}
    shaped = {i for mine in of_shape.values() for i in mine}

    def efficiency(x: FloatArray) -> Efficiency:
        values = np.exp(x).tolist()
        factors = dict(zip(of_shape, values[len(curves) :], strict=True))
        return _with(Efficiency(), zip(curves, values, strict=False), shapes=factors)

    def model(x: FloatArray, mine: Sequence[int]) -> FloatArray:
        found: FloatArray = np.log(predicted([rows[i] for i in mine], efficiency(x)))
        return found

    x, residuals = LeastSquares(
        model,
        np.log([row.step_ms for row in rows]),
        np.array([NOISE if i in shaped else UNSHAPED for i in every]),
        np.array([*np.log(usual), *np.zeros(len(of_shape))]),
        np.array([*spread, *map(_shape_spread, of_shape)]),
        np.array([*np.log(most), *[np.inf] * len(of_shape)]),
        [*[every] * len(curves), *of_shape.values()],
    ).run()
    inside, factors = np.isin(every, [*shaped]), x[len(curves) :]
    scatter = float(np.sqrt(np.mean(factors**2))) if len(factors) else 0.0
    spreads = {
        "spread": _spread(residuals[inside]),
        "spread_elsewhere": max(_spread(residuals[~inside]), scatter),
    }
    return with_memory(rows, _with(efficiency(x), spreads.items())), residuals


def _shapes(rows: Sequence[MeasuredRow]) -> dict[str, list[int]]:
    """Return, for the name of each shape of layer that occurs in at least :data:`ROWS` rows, the
    indices of these rows."""
    found: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        for shape in row.setup.shapes:
            found.setdefault(shape, []).append(i)
    return {shape: mine for shape, mine in sorted(found.items()) if len(mine) >= ROWS}


def with_memory(rows: Sequence[MeasuredRow], efficiency: Efficiency) -> Efficiency:
    """Return ``efficiency`` with the memory overhead fitted to the rows whose memory was
    measured."""
    known = [(row, row.memory_gib) for row in rows if row.memory_gib is not None]
    bare, found = _with(efficiency, fragmentation=0.0, context_gib=0.0), priors(memory=True)
    usual, spread, most = np.array([*found.values()]).T
    tensors = np.array([peak_gib(row, bare) for row, _ in known])

    def model(x: FloatArray, mine: Sequence[int]) -> FloatArray:
        share, context = np.exp(x)
        result: FloatArray = np.log(tensors[mine] * (1 + share) + context)
        return result

    x, _ = LeastSquares(
        model,
        np.log([size for _, size in known]),
        np.full(len(known), MEMORY_NOISE),
        *(np.log(usual), spread, np.log(most)),
        [range(len(known))] * len(found),
        close=0.0,
    ).run()
    return _with(efficiency, zip(found, np.exp(x).tolist(), strict=True))


def _with(
    efficiency: Efficiency, rates: Iterable[tuple[str, float]] = (), **more: Any
) -> Efficiency:
    return efficiency.model_copy(update={**dict(rates), **more})


def _shape_spread(shape: str) -> float:
    return SHAPE_SPREAD.get(WorkKind(shape.partition(" ")[0]), LAYER_SPREAD)


def _spread(residuals: FloatArray) -> float:
    """Return the spread of residuals: the 68% quantile of their absolute values, combined with the
    prior (:data:`FORMER`, :data:`USUAL_SPREAD`)."""
    count = len(residuals)
    middle = max(NOISE, float(np.quantile(np.abs(residuals), 0.68))) if count else 0.0
    return float(np.sqrt((FORMER * USUAL_SPREAD**2 + count * middle**2) / (FORMER + count)))
