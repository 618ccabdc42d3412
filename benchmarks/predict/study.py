"""Which rows calibrate and which are held back, and how far predictions of the latter are off."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

import pipeloom.planner.clusters
from pipeloom.planner.clusters.efficiency import Efficiency
from pipeloom.planner.prediction.calibration import Calibration, calibrated_on
from pipeloom.planner.prediction.fit import peak_gib, predicted
from pipeloom.planner.prediction.measured_rows import MeasuredRow

VTRAIN = "vtrain"
TARGETS = {
    ("vtrain", "median"): 3.0,
    ("vtrain", "p90"): 10.0,
    ("vtrain", "plan_loss"): 2.0,
    ("large dense", "median"): 10.0,
    ("memory", "median"): 5.0,
}
"""Most percent that the figures of held rows may be."""
Rows = Sequence[MeasuredRow]


def split(rows: Rows) -> tuple[list[MeasuredRow], list[MeasuredRow]]:
    """Every second group of each source calibrates, the others are held back."""
    chosen: set[Any] = set()
    for _, groups in groupby(sorted({row.group for row in rows}), key=lambda group: group[0]):
        chosen |= set(list(groups)[::2])
    return (
        [row for row in rows if row.group in chosen],
        [row for row in rows if row.group not in chosen],
    )


def by_gpu(rows: Rows) -> dict[str, Rows]:
    """The rows of each GPU."""
    found: dict[str, list[MeasuredRow]] = {}
    for row in rows:
        found.setdefault(row.setup.cluster.gpu.name, []).append(row)
    return dict(found)


def calibrations(rows: Rows, *, shapes: bool = True) -> dict[str, Calibration]:
    """A calibration for each GPU that rows of use are of."""
    useful = {gpu: mine for gpu, mine in by_gpu(rows).items() if any(r.calibrates for r in mine)}
    return {gpu: calibrated_on(mine, shapes=shapes) for gpu, mine in useful.items()}


def study(calibrating: Rows, held: Rows) -> dict[str, Any]:
    """The figures of the held rows, with and without factors of layers' shapes, and those of
    layers whose shape calibration never saw."""
    held = [*held, *(row for row in calibrating if not row.calibrates)]
    found = calibrations(calibrating)
    reached = {gpu: each.cluster.efficiency for gpu, each in found.items()}
    curves = {
        gpu: each.cluster.efficiency
        for gpu, each in calibrations(calibrating, shapes=False).items()
    }
    return {
        "calibrated_rows": sum(row.calibrates for row in calibrating),
        "held_rows": len(held),
        "held": _figures(held, reached),
        "held, curves alone": _figures(held, curves),
        "halves swapped": _figures(calibrating, _efficiencies(calibrations(held))),
        "unseen shapes": _unseen([*calibrating, *held]),
        "efficiency": {gpu: each.to_dict() for gpu, each in reached.items()},
        "rows": [_row(row, reached) for row in held if row.source != VTRAIN],
    }


def _efficiencies(found: Mapping[str, Calibration]) -> dict[str, Efficiency]:
    return {gpu: each.cluster.efficiency for gpu, each in found.items()}


def _figures(rows: Rows, reached: Mapping[str, Efficiency]) -> dict[str, dict[str, float]]:
    """By source, of all large dense runs, of memory, and of those with experts."""
    dense = [row for row in rows if row.calibrates]
    parts = {
        **{source: [r for r in dense if r.source == source] for source in _sources(dense)},
        "large dense": [row for row in dense if row.source != VTRAIN],
        "experts": [row for row in rows if row.setup.model.experts is not None],
        "precision not known": [row for row in rows if not row.precision_known],
    }
    found = {name: _off(_time_ratios(mine, reached)) for name, mine in parts.items() if mine}
    known = [row for row in dense if row.memory_gib is not None]
    found["memory"] = _off([_memory_ratio(row, reached) for row in known])
    if VTRAIN in found:
        found[VTRAIN] |= plan_loss(parts[VTRAIN], reached)
    return found


def _sources(rows: Rows) -> list[str]:
    return sorted({row.source for row in rows})


def _time_ratios(rows: Rows, reached: Mapping[str, Efficiency]) -> list[float]:
    """Predicted over measured step times."""
    return [time / row.step_ms for row, time in zip(rows, _times(rows, reached), strict=True)]


def _times(rows: Rows, reached: Mapping[str, Efficiency]) -> list[float]:
    times = {
        id(row): time
        for gpu, mine in by_gpu(rows).items()
        for row, time in zip(mine, predicted(mine, reached.get(gpu, Efficiency())), strict=True)
    }
    return [float(times[id(row)]) for row in rows]


def _memory_ratio(row: MeasuredRow, reached: Mapping[str, Efficiency]) -> float:
    assert row.memory_gib is not None
    return peak_gib(row, reached.get(row.setup.cluster.gpu.name, Efficiency())) / row.memory_gib


def _off(ratios: Sequence[float]) -> dict[str, float]:
    """Percent that predictions are off; ``bias``: the median with its sign."""
    off = np.array(ratios) * 100 - 100
    return {
        "rows": len(ratios),
        "median": float(np.median(np.abs(off))),
        "p90": float(np.quantile(np.abs(off), 0.9)),
        "largest": float(np.abs(off).max()),
        "bias": float(np.median(off)),
    }


def plan_loss(rows: Rows, reached: Mapping[str, Efficiency]) -> dict[str, float]:
    """How much slower the run predicted fastest is than the fastest measured one, in percent, mean
    over groups of several."""
    losses = []
    for mine in _groups(rows):
        times = _times(mine, reached)
        picked = mine[times.index(min(times))].step_ms
        losses.append(picked / min(row.step_ms for row in mine) * 100 - 100)
    return {"plan_loss": float(np.mean(losses)), "groups": len(losses)}


def _groups(rows: Rows) -> Iterator[list[MeasuredRow]]:
    def key(row: MeasuredRow) -> Any:
        return row.group

    for _, mine in groupby(sorted(rows, key=key), key):
        if len(group := list(mine)) > 1:
            yield group


def _unseen(rows: Rows) -> dict[str, float]:
    """How far off vTrain's rows are by a calibration on those with other shapes of layers."""
    mine = [row for row in rows if row.source == VTRAIN]
    shapes = sorted({sorted(row.setup.shapes)[0] for row in mine})
    ratios: list[float] = []
    for half in (shapes[::2], shapes[1::2]):
        others = [row for row in mine if row.setup.shapes.isdisjoint(half)]
        held = [row for row in mine if not row.setup.shapes.isdisjoint(half)]
        if others and held:
            reached = calibrated_on(others).cluster
            ratios += _time_ratios(held, {reached.gpu.name: reached.efficiency})
    return _off(ratios) if ratios else {}


def _row(row: MeasuredRow, reached: Mapping[str, Efficiency]) -> dict[str, Any]:
    run = row.setup.run
    memory = None if row.memory_gib is None else _memory_ratio(row, reached)
    return {
        "source": row.source,
        "model": row.model,
        "gpu": row.setup.cluster.gpu.name,
        **{key: getattr(run, key) for key in ("gpus", "tp", "pp", "dp", "cp", "ep", "seq")},
        "precision": str(run.precision) if row.precision_known else "not known",
        "measured_ms": row.step_ms,
        "time": _time_ratios([row], reached)[0],
        "memory": memory,
    }


def tables(found: Mapping[str, Any]) -> Iterator[str]:
    """Markdown: how far predictions of the held rows are off."""
    yield (
        "| held rows | n | median | 90th percentile | largest | bias | median, curves alone "
        "| median, halves swapped |"
    )
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for name, each in found["held"].items():
        numbers = " | ".join(f"{each[key]:.1f} %" for key in ("median", "p90", "largest", "bias"))
        alone = found["held, curves alone"][name]["median"]
        swapped = found["halves swapped"].get(name, {}).get("median")
        other = "-" if swapped is None else f"{swapped:.1f} %"
        yield f"| {name} | {each['rows']} | {numbers} | {alone:.1f} % | {other} |"
    if VTRAIN in found["held"]:
        loss = found["held"][VTRAIN]
        yield ""
        yield f"plan preferred: {loss['plan_loss']:.2f} % above the best, {loss['groups']} groups"
    if unseen := found["unseen shapes"]:
        yield f"shapes never seen: median {unseen['median']:.1f} %, p90 {unseen['p90']:.1f} %"


def missed(found: Mapping[str, Any]) -> list[str]:
    """A line for each target that is missed."""
    return [
        f"missed: {name}, {figure}: {found['held'][name][figure]:.2f} %, at most {most:g} %"
        for (name, figure), most in TARGETS.items()
        if name in found["held"] and not found["held"][name][figure] <= most
    ]


def write_calibrated(found: Mapping[str, Calibration]) -> dict[str, Any]:
    """Writes the calibrations that ``predict`` uses by default; gives how well each fits."""
    path = Path(pipeloom.planner.clusters.__file__).with_name("calibrated.json")
    gpus = {gpu: _rounded(each.cluster.efficiency.to_dict()) for gpu, each in found.items()}
    path.write_text(json.dumps({"gpus": gpus}, indent=1) + "\n", encoding="utf-8")
    return {
        gpu: {k: v for k, v in each.to_dict().items() if k != "efficiency"}
        for gpu, each in found.items()
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return float(f"{value:.4g}")
