"""Measured training runs: for each, a model, the settings of the run, and the measured values.

A file has the format of the published measurements: an object with ``runs``, a list with one object
per run. Its keys are the settings of the run (the arguments of ``predict``), ``model`` (a preset's
name, or one of the file's ``models``), and a measured ``step_ms``, ``tokens_per_s_per_gpu`` or
``model_tflops_per_gpu``. The file may also have ``vtrain``, a table whose ``rows`` are lists of
values, with the keys of these values in ``columns``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeloom.ir.errors import InputError, show

from ..clusters.cluster import Cluster, read_cluster
from ..clusters.efficiency import Efficiency
from ..inputs.documents import Document, naming, read_document
from ..models.reading import read_model
from ..models.run import ALSO, KEYS, words_of
from .setup import Setup

VTRAIN = {
    **{"source": "vtrain", "gpu": "A100-80GB", "seq": 1024},
    **{"precision": "fp16", "recompute": "full"},
}
"""Values that all rows of vTrain's measurements (Bang et al., 2023) have in common."""
LEAST, MOST = 1e-6, 1e12
"""The range of valid measured values."""
AGREE = 1.05  # largest ratio between a run's step time and that by its throughput
_MEASURED = ("step_ms", "tokens_per_s_per_gpu", "model_tflops_per_gpu", "memory_gib", "memory_gb")
_BESIDE = (
    "source", "case", "release", "note", "seq_stated", "weights_optimizer_gib", "activation_gib",
    "activation_none_gib",
)  # fmt: skip
"""Keys for the origin of a row and for other measurements, which the fit does not use."""


@dataclass(frozen=True)
class MeasuredRow:
    """A measured run.

    ``source``: where it was published, in a word. ``cluster``: the cluster on which it was
    measured. ``step_ms``: step time in milliseconds. ``memory_gib``: memory of the fullest device,
    None if it was not measured. ``precision_known``: whether the source states the precision.
    """

    source: str
    model: str
    setup: Setup
    cluster: Cluster
    step_ms: float
    memory_gib: float | None = None
    precision_known: bool = True

    @property
    def calibrates(self) -> bool:
        """Whether calibration uses the row. It leaves out models with experts, whose loads are
        uneven, and rows whose precision is unknown."""
        return self.precision_known and self.setup.model.experts is None

    def reaching(self, efficiency: Efficiency) -> Cluster:
        """Return the row's cluster with another ``efficiency``."""
        return self.cluster.model_copy(update={"efficiency": efficiency})

    @property
    def group(self) -> tuple[str, str, int, int, int]:
        """A key that is equal for rows that differ only in how the same model and batch are
        distributed over the same number of GPUs."""
        run = self.setup.run
        return self.source, self.model, run.layers, run.gpus, run.global_batch


def read_rows(given: Document, own: Cluster | None = None) -> list[MeasuredRow]:
    """Return all rows of a file or object of measurements.

    ``own``: the cluster of rows that do not name a GPU, or that name this cluster or its GPU.
    Raises InputError, with the name of the row, if a row is invalid.
    """
    document, where = read_document(given, "measurements")
    models, rows = document.get("models", {}), document.get("runs", [])
    if not isinstance(models, dict) or not all(isinstance(of, dict) for of in models.values()):
        raise InputError(f"{where}: models: expected an object of models, got {show(models)}")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{where}: runs: expected a list of objects, got {show(rows)}")
    named = [(f"runs[{i}]", row) for i, row in enumerate(rows)]
    named += [(f"vtrain: rows[{i}]", row) for i, row in enumerate(_vtrain(document, where))]
    if not named:
        raise InputError(f"{where}: runs: expected a list of measured runs, got none")
    found = []
    for name, row in named:
        with naming(f"{where}: {name}"):
            found.append(_row(row, models, own))
    return found


def _vtrain(document: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    table = document.get("vtrain", {"columns": [], "rows": []})
    try:
        columns = table["columns"]
        return [VTRAIN | dict(zip(columns, row, strict=True)) for row in table["rows"]]
    except (KeyError, TypeError, ValueError):
        expected = "expected columns, and rows that have a value for each"
        raise InputError(f"{where}: vtrain: {expected}, got {show(table)}") from None


def _row(row: dict[str, Any], models: Mapping[str, Any], own: Cluster | None) -> MeasuredRow:
    words = words_of(row)
    words.refuse_unknown({"model", "gpu", *KEYS, *ALSO, *_MEASURED, *_BESIDE})
    expected = f"a number > 0 and <= {MOST:g}"
    measured = {key: words.number(key, LEAST, MOST, expected) for key in _MEASURED}
    words.raise_faults()
    name = row.get("model")
    if not isinstance(name, str) or ("gpu" not in row and own is None):
        raise InputError(f"model, gpu: expected both by name, got {show(row)}")
    if own is not None and row.get("gpu") in (None, own.name, own.gpu.name):
        cluster = own
    else:
        with naming("gpu"):
            cluster = read_cluster(row["gpu"])
    run = {key: value for key, value in row.items() if key in (*KEYS, *ALSO)}
    setup = Setup.of(read_model(models.get(name, name), "model"), run, cluster)
    size = measured["memory_gb"]
    return MeasuredRow(
        source=str(row.get("source", "measured")),
        model=name,
        setup=setup,
        cluster=cluster,
        step_ms=_step_ms(measured, setup),
        memory_gib=measured["memory_gib"] if size is None else size * 1e9 / 2**30,
        precision_known=row.get("precision") != "?",
    )


def _step_ms(measured: Mapping[str, float | None], setup: Setup) -> float:
    """Return the step time in milliseconds: as measured, or calculated from the measured
    throughput."""
    run, (step_ms, tokens, teraflops) = setup.run, [measured[key] for key in _MEASURED[:3]]
    by_tokens = None if tokens is None else run.global_batch * run.seq / (tokens * run.gpus) * 1e3
    if step_ms is not None:
        if by_tokens is not None and not 1 / AGREE <= by_tokens / step_ms <= AGREE:
            raise InputError(
                f"step_ms: expected about {by_tokens:g}, by tokens_per_s_per_gpu, got {step_ms:g}"
            )
        return step_ms
    if by_tokens is not None:
        return by_tokens
    if teraflops is not None:
        return _counted_flops(setup) / (teraflops * run.gpus * 1e9)
    raise InputError("step_ms: missing; expected a number > 0, or another measure")


def _counted_flops(setup: Setup) -> float:
    """Return the FLOPs of a step, counted with full recomputation (Narayanan et al., 2021, equation
    3)."""
    model, run = setup.model, setup.run
    h, layers = model.hidden, run.layers
    parts = 1 + run.seq / (6 * h) + model.vocab / (16 * layers * h)
    return 96.0 * run.global_batch * run.seq * layers * h**2 * parts
