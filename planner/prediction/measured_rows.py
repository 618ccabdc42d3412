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
from pipeloom.ir.formats.validation import misspelt

from ..clusters.cluster import read_cluster
from ..inputs.documents import Document, naming, read_document
from ..models.reading import read_model
from ..models.run import KEYS, TrainingRun
from ..models.words import RunValues
from .setup import Setup

VTRAIN = {"gpu": "A100-80GB", "seq": 1024, "precision": "fp16", "recompute": "full"}
"""What holds for all rows of vTrain's measurements (Bang et al., 2023)."""
_TABLE = ("columns", "rows")
LEAST, MOST = 1e-6, 1e12
"""Of whatever is measured."""
_BATCH = ("microbatches", "local_batch")
TIMES = ("step_ms", "tokens_per_s_per_gpu", "model_tflops_per_gpu")
AGREE = 1.05
"""A time and a throughput of one run that are further apart than this contradict each other."""
_BESIDE = (
    "source", "case", "release", "note", "seq_stated", "weights_optimizer_gib", "activation_gib",
    "activation_none_gib",
)  # fmt: skip
"""Keys that say where a row comes from, and what else was measured; nothing is fitted to them."""
_KNOWN = ("model", *KEYS, *_BATCH, *TIMES, "memory_gib", "memory_gb", *_BESIDE)


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
    if not isinstance(models, dict) or not all(isinstance(of, dict) for of in models.values()):
        raise InputError(f"{where}: models: expected an object of models, got {show(models)}")
    rows = [*_rows(document, where), *_vtrain(document, where)]
    if not rows:
        raise InputError(f"{where}: runs: {_none_of(document)}")
    return [_row(row, models, f"{where}: {name}") for name, row in rows]


def _none_of(document: Mapping[str, Any]) -> str:
    expected = "expected a list of measured runs"
    if "runs" in document:
        return f"{expected}, got none"
    near = next((key for key, _ in misspelt(document, ("runs",))), None)
    return f"missing; {expected}" + (f" (did you mean it by {near}?)" if near else "")


def _rows(document: Mapping[str, Any], where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    given = document.get("runs", [])
    if not isinstance(given, list) or not all(isinstance(row, dict) for row in given):
        raise InputError(f"{where}: runs: expected a list of objects, got {show(given)}")
    for i, row in enumerate(given):
        yield f"runs[{i}]", row


def _vtrain(document: Mapping[str, Any], where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    table = document.get("vtrain", {"columns": [], "rows": []})
    columns, rows = (table.get(key) if isinstance(table, dict) else None for key in _TABLE)
    if not isinstance(columns, list) or not isinstance(rows, list):
        raise InputError(f"{where}: vtrain: expected columns and rows, got {show(table)}")
    for i, values in enumerate(rows):
        if not isinstance(values, list) or len(values) != len(columns):
            raise InputError(
                f"{where}: vtrain: rows[{i}]: expected a list of {len(columns)}, got {show(values)}"
            )
        yield (
            f"vtrain: rows[{i}]",
            {"source": "vtrain", **VTRAIN, **dict(zip(columns, values, strict=True))},
        )


def _row(row: dict[str, Any], models: Mapping[str, Any], where: str) -> MeasuredRow:
    with naming(where):
        RunValues(row, _KNOWN).raise_faults()
    name = row.get("model")
    if not isinstance(name, str) or "gpu" not in row:
        raise InputError(f"{where}: model, gpu: expected both by name, got {show(row)}")
    run = {key: value for key, value in row.items() if key in (*KEYS, *_BATCH)}
    with naming(where):
        with naming("gpu"):
            cluster = read_cluster(row["gpu"])
        setup = Setup.of(read_model(models.get(name, name), "model"), run, cluster)
    return MeasuredRow(
        source=str(row.get("source", "measured")),
        model=name,
        setup=setup,
        step_ms=_step_ms(row, setup, where),
        memory_gib=_memory(row, where),
        precision_known=row.get("precision") != "?",
    )


def _step_ms(row: Mapping[str, Any], setup: Setup, where: str) -> float:
    """The step's time as measured, or from the throughput that was."""
    kind = next((key for key in TIMES if row.get(key) is not None), TIMES[0])
    value, run = _positive(row, kind, where), setup.run
    if value is None:
        raise InputError(f"{where}: {kind}: missing; expected a number > 0, or another measure")
    if kind == "step_ms":
        _check_agreement(row, value, run, where)
        return value
    if kind == "tokens_per_s_per_gpu":
        return _of_throughput(value, run)
    return _counted_flops(setup) / (value * run.gpus * 1e9)


def _of_throughput(tokens: float, run: TrainingRun) -> float:
    """Milliseconds of a step at so many tokens per second on each GPU."""
    return run.global_batch * run.seq / (tokens * run.gpus) * 1e3


def _check_agreement(row: Mapping[str, Any], step_ms: float, run: TrainingRun, where: str) -> None:
    tokens = _positive(row, "tokens_per_s_per_gpu", where)
    if tokens is not None and not 1 / AGREE <= _of_throughput(tokens, run) / step_ms <= AGREE:
        raise InputError(
            f"{where}: step_ms: {step_ms:g} contradicts tokens_per_s_per_gpu {tokens:g}, which is "
            f"{_of_throughput(tokens, run):g} ms per step; expected one of them, or both alike"
        )


def _counted_flops(setup: Setup) -> float:
    """FLOPs of a step, with full recomputation (Narayanan et al., 2021, equation 3)."""
    model, run = setup.model, setup.run
    h, layers = model.hidden, run.layers
    parts = 1 + run.seq / (6 * h) + model.vocab / (16 * layers * h)
    return 96.0 * run.global_batch * run.seq * layers * h**2 * parts


def _memory(row: Mapping[str, Any], where: str) -> float | None:
    """The peak of the fullest device in GiB."""
    if (size := _positive(row, "memory_gb", where)) is not None:
        return size * 1e9 / 2**30
    return _positive(row, "memory_gib", where)


def _positive(row: Mapping[str, Any], key: str, where: str) -> float | None:
    """The measured number, None where there is none. Raises InputError."""
    value = row.get(key)
    sound = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (sound and LEAST <= value <= MOST):
        raise InputError(
            f"{where}: {key}: expected a number > 0 and <= {MOST:g}, got {show(value)}"
        )
    return None if value is None else float(value)
