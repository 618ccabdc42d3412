"""The shape of scaling curves, and that a wrong one is found."""

from __future__ import annotations

import json

from benchmarks.scaling import HERE
from benchmarks.scaling.curves import SCHEMES, faults


def test_what_is_recorded_has_the_published_shape() -> None:
    known = json.loads((HERE / "results" / "curves.json").read_text(encoding="utf-8"))
    curves = [
        each | {"tokens": {int(gpus): value for gpus, value in each["tokens"].items()}}
        for each in known["scaling"]
    ]
    assert len(curves) == 4 * len(SCHEMES)
    assert list(faults(curves, known["degrees"])) == []
