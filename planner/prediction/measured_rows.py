"""Measured runs as rows: a model, the keys of a run, and what was measured.

A file has the form of the published measurements: an object with ``runs``, a list of objects with
the keys of a run, ``model`` (a preset's name, or one of the file's ``models``) and what was
measured: ``step_ms``, or ``tokens_per_s_per_gpu``, or ``model_tflops_per_gpu``. ``vtrain`` has rows
as lists by ``columns``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipeloom.ir.errors import InputError
from pipeloom.ir.formats.json_reader import show

from ..clusters.cluster_json import read_cluster
from ..inputs.documents import Document, naming, read_document
from ..models.run import KEYS
from .setup import Setup

VTRAIN = {"gpu": "A100-80GB", "seq": 1024, "precision": "fp16", "recompute": "full"}
"""What holds for all rows of vTrain's measurements (Bang et al., 2023)."""
_BATCH = ("microbatches", "local_batch")
TIMES = ("step_ms", "tokens_per_s_per_gpu", "model_tflops_per_gpu")


@dataclass(frozen=True)
class MeasuredRow:
    """One measured run. ``step_ms`` and ``memory_gib`` as measured, None where they were not."""

    source: str
    model: str
    setup: Setup
    step_ms: float
    memory_gib: float | None = None
    precision_known: bool = True

    @property
    def calibrates(self) -> bool:
        """Whether the curves are fitted to it: not to experts, whose loads are not even, nor where
        it is not known how wide its numbers are."""
        return self.precision_known and self.setup.model.experts is None

    @property
    def group(self) -> tuple[str, str, int, int, int]:
        """Rows of one group differ in how the same model and batch are spread over as many GPUs."""
        run = self.setup.run
        return self.source, self.model, run.layers, run.gpus, run.global_batch


def read_rows(given: Document) -> list[MeasuredRow]:
    """All rows of a file of measurements. Raises InputError, naming the row, where one is wrong."""
    document, where = read_document(given, "measurements")
    models = document.get("models", {})
    rows = [*_rows(document, where), *_vtrain(document)]
    if not rows:
        raise InputError(f"{where}: runs: expected a list of measured runs, got {show(document)}")
    return [_row(row, models, f"{where}: {name}") for name, row in rows]


def _rows(document: Mapping[str, Any], where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    given = document.get("runs", [])
    if not isinstance(given, list) or not all(isinstance(row, dict) for row in given):
        raise InputError(f"{where}: runs: expected a list of objects, got {show(given)}")
    for i, row in enumerate(given):
        yield f"runs[{i}]", row


def _vtrain(document: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    table = document.get("vtrain", {"columns": [], "rows": []})
    for i, values in enumerate(table["rows"]):
        row = dict(zip(table["columns"], values, strict=True))
        yield f"vtrain: rows[{i}]", {"source": "vtrain", **VTRAIN, **row}


def _row(row: dict[str, Any], models: Mapping[str, Any], where: str) -> MeasuredRow:
    name = row.get("model")
    if not isinstance(name, str) or "gpu" not in row:
        raise InputError(f"{where}: model, gpu: expected both by name, got {show(row)}")
    run = {key: value for key, value in row.items() if key in (*KEYS, *_BATCH)}
    with naming(where):
        setup = Setup.of(models.get(name, name), run, read_cluster(row["gpu"]))
    return MeasuredRow(
        source=str(row.get("source", "measured")),
        model=name,
        setup=setup,
        step_ms=_step_ms(row, setup, where),
        memory_gib=_memory(row),
        precision_known=row.get("precision") != "?",
    )


def _step_ms(row: Mapping[str, Any], setup: Setup, where: str) -> float:
    """The step's time as measured, or from the throughput that was."""
    kind = next((key for key in TIMES if row.get(key) is not None), None)
    value = row.get(kind) if kind else None
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise InputError(f"{where}: expected a number > 0 as {', '.join(TIMES)}, got {show(row)}")
    run = setup.run
    if kind == "step_ms":
        return float(value)
    if kind == "tokens_per_s_per_gpu":
        return run.global_batch * run.seq / (value * run.gpus) * 1e3
    return _counted_flops(setup) / (value * run.gpus * 1e9)


def _counted_flops(setup: Setup) -> float:
    """FLOPs of a step, with full recomputation (Narayanan et al., 2021, equation 3)."""
    model, run = setup.model, setup.run
    h, layers = model.hidden, run.layers
    parts = 1 + run.seq / (6 * h) + model.vocab / (16 * layers * h)
    return 96.0 * run.global_batch * run.seq * layers * h**2 * parts


def _memory(row: Mapping[str, Any]) -> float | None:
    """The peak of the fullest device in GiB."""
    if row.get("memory_gb") is not None:
        return float(row["memory_gb"]) * 1e9 / 2**30
    return row.get("memory_gib")
