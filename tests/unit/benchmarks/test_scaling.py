"""The shape of scaling curves, and that a wrong one is found."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.scaling import HERE
from benchmarks.scaling.curves import SCHEMES, faults


def curve(scheme: str, *tokens: float | None) -> dict[str, Any]:
    known = dict(zip((4, 16), tokens, strict=True))
    return {"setup": "small", "scaling": "weak", "scheme": scheme, "tokens": known}


MINE = curve("WeiPipe", 10.0, 9.0)


def test_what_is_recorded_has_the_published_shape() -> None:
    known = json.loads((HERE / "results" / "curves.json").read_text(encoding="utf-8"))
    curves = [
        each | {"tokens": {int(gpus): value for gpus, value in each["tokens"].items()}}
        for each in known["scaling"]
    ]
    assert len(curves) == 4 * len(SCHEMES)
    assert list(faults(curves, known["degrees"])) == []


def test_a_wrong_shape_is_found() -> None:
    assert list(faults([MINE, curve("1F1B", 12.0, 8.0)], [])) == []
    (ahead,) = faults([MINE, curve("1F1B", 12.0, 9.5)], [])
    assert ahead == "small, weak, 1F1B: ahead of WeiPipe on 16 GPUs"
    (less,) = faults([MINE, curve("1F1B", 8.0, 7.9)], [])
    assert less == "small, weak, 1F1B: loses less than WeiPipe from 4 to 16 GPUs"
    (lost,) = faults([MINE, curve("1F1B", 8.0, None)], [])
    assert lost == "small, weak, 1F1B: does not fit"
    degrees = [{"stages": 1.0, "tokens": 5.0}, {"stages": 2.0, "tokens": 5.0}]
    assert len(list(faults([MINE], degrees))) == 1
