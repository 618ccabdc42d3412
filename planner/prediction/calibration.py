"""``calibrate``: fit the rates that kernels reach, relative to a GPU's peaks, to measured runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.ops import FloatArray
from pipeloom.ir.units import counted

from ..clusters.cluster import Cluster, ClusterLike, cluster_of
from ..inputs.documents import Document
from .fit import fitted
from .measured_rows import MeasuredRow, read_rows

FAR = 2.0
"""A note warns that a fit is unusable if predicted and measured times differ by at least this
factor in the median."""


@dataclass(frozen=True)
class Calibration:
    """A ``cluster`` whose efficiency was fitted to measured runs.

    ``rows``: the runs. ``residuals``: log(predicted / measured) of the step time of each row, (N,).
    """

    cluster: Cluster
    rows: tuple[MeasuredRow, ...]
    residuals: FloatArray

    @property
    def notes(self) -> tuple[str, ...]:
        """A tuple with a warning if, for at least half of the fitted runs, predicted and measured
        step times differ by a factor of :data:`FAR` or more; otherwise an empty tuple."""
        off = float(np.median(np.abs(self.residuals)))
        if off < np.log(FAR):
            return ()
        words = f"predictions are off by a factor of {np.exp(off):.1f} in the median"
        return (f"the fit is not to be trusted: {words}; are units and keys of the runs right?",)

    @property
    def document(self) -> dict[str, Any]:
        """The content of the cluster file, which ``predict`` and ``plan`` take as their argument
        ``cluster``."""
        return self.cluster.to_dict()

    def to_dict(self) -> dict[str, Any]:
        """Return the fitted rates, and how far predictions with them are from the measured step
        times, in percent."""
        off = np.abs(np.expm1(self.residuals)) * 100
        return {
            "gpu": self.cluster.gpu.name,
            "rows": len(self.rows),
            "median_percent": float(np.median(off)),
            "p90_percent": float(np.quantile(off, 0.9)),
            "largest_percent": float(off.max()),
            "efficiency": self.cluster.efficiency.model_dump(),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        found = self.to_dict()
        runs = counted(len(self.rows), "run")
        shapes = counted(len(self.cluster.efficiency.shapes), "shape")
        return (
            f"{found['gpu']}: {runs}, off by {found['median_percent']:.1f} % in the median, "
            f"{found['p90_percent']:.1f} % at the 90th percentile, "
            f"{found['largest_percent']:.1f} % at most; {shapes} of layers"
        ) + "".join(f"\nnote: {note}" for note in self.notes)


def calibrate(cluster: ClusterLike, runs: Document) -> Calibration:
    """Fit the efficiency of ``cluster`` to measured runs on its GPUs, regularized by priors.

    ``cluster``: a preset's name, a file or an object. ``runs``: an object, or a file with one,
    whose ``runs`` is a list with one object per training run: its settings (the arguments of
    ``predict``), ``model``, and one of ``step_ms``, ``tokens_per_s_per_gpu`` and
    ``model_tflops_per_gpu``; optionally ``memory_gib``, the memory of the fullest device. Runs on
    another GPU (their key ``gpu``) are not used. Raises InputError for invalid input, and if no run
    is usable.
    """
    where = cluster_of(cluster, None)
    rows = read_rows(runs, where)
    own = [row for row in rows if row.cluster.gpu.name == where.gpu.name]
    if not own:
        names = " or ".join(sorted({row.cluster.gpu.name for row in rows}))
        raise InputError(f"cluster: expected {names}, whose runs there are, got {where.gpu.name}")
    return calibrated_on(replace(row, cluster=where) for row in own)


def calibrated_on(rows: Iterable[MeasuredRow], *, shapes: bool = True) -> Calibration:
    """Return the calibration that is fitted to ``rows``, all of which were measured on the same
    kind of GPU.

    ``shapes``: whether shapes of layers that occur in several rows get a factor of their own.
    Raises InputError if no row is usable.
    """
    given = [row for row in rows if row.calibrates]
    if not given:
        raise InputError("runs: expected one without experts and with a known precision")
    efficiency, residuals = fitted(given, shapes=shapes)
    return Calibration(given[0].reaching(efficiency), tuple(given), residuals)
