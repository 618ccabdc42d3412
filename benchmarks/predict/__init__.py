"""Predicted beside measured: step times and memory of published runs that calibration never saw.

``python -m benchmarks.predict`` (some minutes) reads published runs (``published.json``),
calibrates on every second group of each source, predicts the others, prints the tables of
``README.md`` and records them in ``results/predict.json``; 1 where a target is missed. With
``--record`` it then calibrates on all rows and writes what ``predict`` uses by default.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.recording import record

from .study import calibrations, missed, split, study, tables, write_calibrated

PUBLISHED = Path(__file__).with_name("published.json")


def main(arguments: list[str]) -> int:
    """Runs the study, prints its tables and records it."""
    from pipeloom.planner.prediction.measured_rows import read_rows

    parser = argparse.ArgumentParser(prog="python -m benchmarks.predict", description=__doc__)
    parser.add_argument("measurements", nargs="?", default=PUBLISHED, help="file of measured runs")
    parser.add_argument("--record", action="store_true", help="calibrate the presets on all rows")
    args = parser.parse_args(arguments)
    rows = read_rows(args.measurements)
    found = study(*split(rows))
    if args.record:
        found["calibrated"] = write_calibrated(calibrations(rows))
    path = record(Path(__file__).parent, "predict", found)
    print("\n".join([*tables(found), "", f"recorded in {path.name}"]))
    lines = missed(found)
    print("\n".join(lines))
    return 1 if lines else 0
