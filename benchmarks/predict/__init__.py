"""Predicted and measured step times and memory of published runs that were not used for
calibration.

A group contains the runs of one model with one batch on the same number of GPUs. Every second group
of each source is used for calibration, and the others are held out. The presets' rates, in
contrast, are calibrated on all rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from pipeloom import Calibration
from pipeloom.planner import Efficiency, MeasuredRow, read_rows
from pipeloom.planner.prediction.calibration import calibrated_on
from pipeloom.planner.prediction.fit import peak_gib, predicted

from .. import Case, Claim, Column, Row, Size, Table, of_part, plain
from .. import Rows as Figures

PUBLISHED = Path(__file__).with_name("published.json")
ROOMS = ("planner",)
HELD, UNSEEN, RUNS, RATES = "held rows", "unseen shapes", "held runs", "rates"
VTRAIN, SMALL = "vtrain", "simumax-b200"
MEMORY, DENSE, EXPERTS, UNKNOWN = "memory", "large dense", "experts", "precision not known"
TARGETS = {
    (VTRAIN, "median"): 3.0,
    (VTRAIN, "p90"): 10.0,
    (VTRAIN, "plan_loss"): 2.0,
    (DENSE, "median"): 10.0,
    (MEMORY, "median"): 5.0,
}
"""The largest values allowed, in percent, by (held-out rows, figure)."""
Rows = Sequence[MeasuredRow]
Reached = Callable[[str], Efficiency]
"""A function from the name of a GPU to the rates that it reaches."""


@cache
def all_rows() -> list[MeasuredRow]:
    return read_rows(PUBLISHED)


@cache
def halves() -> tuple[list[MeasuredRow], list[MeasuredRow]]:
    """The calibration rows and the held-out rows.

    Calibration rows are the rows in every second group of each source. The held-out rows are the
    rows of the other groups, and all rows that calibration cannot use. The latter are therefore in
    both lists if they belong to a calibration group.
    """
    chosen: set[Any] = set()
    groups = sorted({row.group for row in all_rows()})
    for _, own in groupby(groups, key=lambda group: group[0]):
        chosen |= set(list(own)[::2])
    calibrating = [row for row in all_rows() if row.group in chosen]
    held = [row for row in all_rows() if row.group not in chosen]
    return calibrating, [*held, *(row for row in calibrating if not row.calibrates)]


@cache
def calibration(gpu: str, half: int | None, *, shapes: bool = True) -> Calibration | None:
    """The calibration of a GPU on one half of the rows, or on all rows if ``half`` is None.

    ``half``: an index into :func:`halves`. ``shapes``: fit factors for layer shapes. Returns None
    if none of the rows can be used.
    """
    mine = _of_gpu(gpu, half)
    return calibrated_on(mine, shapes=shapes) if any(r.calibrates for r in mine) else None


def _of_gpu(gpu: str, half: int | None) -> list[MeasuredRow]:
    rows = all_rows() if half is None else halves()[half]
    return [row for row in rows if row.cluster.gpu.name == gpu]


def reached(half: int, *, shapes: bool = True) -> Reached:
    def rates(gpu: str) -> Efficiency:
        found = calibration(gpu, half, shapes=shapes)
        return Efficiency() if found is None else found.cluster.efficiency

    return rates


def cases(size: Size) -> Iterator[Case]:
    if size == "small":
        yield Case(HELD, SMALL)
        return
    calibrating, held = halves()
    for name in _parts(held):
        yield Case(HELD, name)
    yield Case(UNSEEN, VTRAIN)
    for number, row in enumerate(row for row in held if row.source != VTRAIN):
        yield Case(RUNS, f"run {number}", {"row": row})
    for gpu in dict.fromkeys(row.cluster.gpu.name for row in (*calibrating, *held)):
        for half in (0, None):
            if any(row.calibrates for row in _of_gpu(gpu, half)):
                words = "all rows" if half is None else "half of the rows"
                yield Case(RATES, f"{gpu}, {words}", {"gpu": gpu, "half": half})


def measure(case: Case) -> Row:
    if case.part == HELD:
        return _held(case.name)
    if case.part == UNSEEN:
        calibrating, held = halves()
        counts = {"calibrated_rows": sum(row.calibrates for row in calibrating)}
        return counts | {"held_rows": len(held)} | _unseen([*calibrating, *held])
    if case.part == RUNS:
        return _row(case.given["row"], reached(0))
    found = calibration(case.given["gpu"], case.given["half"])
    assert found is not None
    return found.to_dict() | {"gpu": case.given["gpu"], "half": case.given["half"]}


def _held(name: str) -> Row:
    """The figures of the held-out rows of a source or kind ``name``: with factors for layer shapes,
    without them, and with the two halves exchanged."""
    calibrating, held = halves()
    found: dict[str, Any] = {
        "figures": _figures(_parts(held)[name], name, reached(0)),
        "curves_alone": _figures(_parts(held)[name], name, reached(0, shapes=False)),
    }
    if mine := _parts(calibrating).get(name):
        found["halves_swapped"] = _figures(mine, name, reached(1))
    return found


def _parts(rows: Rows) -> dict[str, Rows]:
    """The rows by source, and by kind: large dense, experts, unknown precision, known memory."""
    dense = [row for row in rows if row.calibrates]
    sources = sorted({row.source for row in dense})
    parts = {
        **{source: [r for r in dense if r.source == source] for source in sources},
        DENSE: [row for row in dense if row.source != VTRAIN],
        EXPERTS: [row for row in rows if row.setup.model.experts is not None],
        UNKNOWN: [row for row in rows if not row.precision_known],
        MEMORY: [row for row in dense if row.memory_gib is not None],
    }
    return {name: mine for name, mine in parts.items() if mine}


def _figures(rows: Rows, name: str, rates: Reached) -> dict[str, float]:
    if name == MEMORY:
        return _off([_memory_ratio(row, rates) for row in rows])
    found = _off(_time_ratios(rows, rates))
    return found | (plan_loss(rows, rates) if name == VTRAIN else {})


def _time_ratios(rows: Rows, rates: Reached) -> list[float]:
    """Predicted / measured step time of each row."""
    return [time / row.step_ms for row, time in zip(rows, _times(rows, rates), strict=True)]


def _times(rows: Rows, rates: Reached) -> list[float]:
    runs = groupby(rows, key=lambda row: row.cluster.gpu.name)
    return [float(time) for gpu, run in runs for time in predicted([*run], rates(gpu))]


def _memory_ratio(row: MeasuredRow, rates: Reached) -> float:
    assert row.memory_gib is not None
    return peak_gib(row, rates(row.cluster.gpu.name)) / row.memory_gib


def _off(ratios: Sequence[float]) -> dict[str, float]:
    """Statistics of relative prediction errors in percent, from predicted / measured ratios.

    ``median``, ``p90`` and ``largest``: of the absolute errors. ``bias``: the median of the signed
    errors.
    """
    off = np.array(ratios) * 100 - 100
    return {
        "rows": len(ratios),
        "median": float(np.median(np.abs(off))),
        "p90": float(np.quantile(np.abs(off), 0.9)),
        "largest": float(np.abs(off).max()),
        "bias": float(np.median(off)),
    }


def plan_loss(rows: Rows, rates: Reached) -> dict[str, float]:
    """``plan_loss``: how much longer the run that is predicted to be fastest takes than the fastest
    run, in percent, as the mean over all groups with several runs. ``groups``: the number of these
    groups.
    """
    losses = []
    for group in sorted({row.group for row in rows}):
        mine = [row for row in rows if row.group == group]
        if len(mine) > 1:
            times = _times(mine, rates)
            picked = mine[times.index(min(times))].step_ms
            losses.append(picked / min(row.step_ms for row in mine) * 100 - 100)
    return {"plan_loss": float(np.mean(losses)), "groups": len(losses)}


def _unseen(rows: Rows) -> dict[str, float]:
    """Errors (:func:`_off`) for vTrain's rows if calibration uses only rows with other layer
    shapes."""
    mine = [row for row in rows if row.source == VTRAIN]
    shapes = sorted({sorted(row.setup.shapes)[0] for row in mine})
    ratios: list[float] = []
    for half in (shapes[::2], shapes[1::2]):
        others = [row for row in mine if row.setup.shapes.isdisjoint(half)]
        held = [row for row in mine if not row.setup.shapes.isdisjoint(half)]
        if others and held:
            found = calibrated_on(others).cluster.efficiency
            times = predicted(held, found)
            ratios += [float(t) / row.step_ms for row, t in zip(held, times, strict=True)]
    return _off(ratios) if ratios else {}


def _row(row: MeasuredRow, rates: Reached) -> Row:
    run = row.setup.run
    memory = None if row.memory_gib is None else _memory_ratio(row, rates)
    return {
        "source": row.source,
        "model": row.model,
        "gpu": row.cluster.gpu.name,
        **{key: getattr(run, key) for key in ("gpus", "tp", "pp", "dp", "cp", "ep", "seq")},
        "precision": str(run.precision) if row.precision_known else "not known",
        "measured_ms": row.step_ms,
        "time": _time_ratios([row], rates)[0],
        "memory": memory,
    }


def judge(rows: Figures) -> Iterator[Claim]:
    held = {row["case"]: row for row in of_part(rows, HELD)}
    unseen = of_part(rows, UNSEEN)
    if unseen and held.keys() >= {DENSE, EXPERTS}:
        yield _summary(held, unseen)
    for (name, figure), most in TARGETS.items():
        if name in held:
            found = held[name]["figures"][figure]
            words = f"{name}, {figure}: {found:.1f} %; the target is at most {most:g} %."
            yield Claim(HELD, words, found <= most)


def _summary(held: Mapping[str, Row], unseen: Figures) -> Claim:
    dense, experts, vtrain = (held[name]["figures"] for name in (DENSE, EXPERTS, VTRAIN))
    swapped = held[DENSE]["halves_swapped"]["median"]
    memory = held[MEMORY]["figures"]["median"]
    words = (
        "The median error of predicted step times, on published runs that calibration did not "
        f"see, is {dense['median']:.1f}% for {dense['rows']} large dense runs ({swapped:.1f}% with "
        f"calibration and test runs exchanged), {experts['median']:.0f}% for {experts['rows']} "
        f"mixture-of-experts runs, and {vtrain['median']:.1f}% for {vtrain['rows']} runs of vTrain "
        f"({unseen[0]['median']:.0f}% if no other run has the same layers); for memory, it is "
        f"{memory:.0f}%."
    )
    return Claim(HELD, words, key="predict")


def _percent(head: str, which: str, figure: str) -> Column:
    def value(row: Row) -> str | None:
        return f"{row[which][figure]:.1f} %" if which in row else None

    return Column(head, value)


columns = {
    HELD: Table(
        *plain({"held-out rows": "case"}),
        Column("n", lambda row: row["figures"]["rows"]),
        *(_percent(key, "figures", key) for key in ("median", "p90", "largest", "bias")),
        _percent("median, curves only", "curves_alone", "median"),
        _percent("median, halves swapped", "halves_swapped", "median"),
    ),
    UNSEEN: Table(*plain({"unseen shapes": "case"}), *plain("median p90", ".1f")),
    RUNS: Table(
        *plain("source model gpu gpus tp pp dp"),
        *plain({"measured ms": "measured_ms"}, ".0f"),
        *plain({"predicted / measured": "time", "memory": "memory"}, ".2f"),
    ),
    RATES: Table(
        *plain({"calibrated on": "case", "rows": "rows"}),
        *plain({f"{key}, %": f"{key}_percent" for key in ("median", "p90", "largest")}, ".1f"),
    ),
}


def files(rows: Figures) -> dict[str, str]:
    """The file of the default calibrations of ``predict``, which use all rows."""
    whole = [row for row in of_part(rows, RATES) if row["half"] is None]
    gpus = {row["gpu"]: _rounded(row["efficiency"]) for row in whole}
    text = json.dumps({"gpus": gpus}, indent=1) + "\n"
    return {"planner/clusters/calibrated.json": text}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return float(f"{value:.4g}")
