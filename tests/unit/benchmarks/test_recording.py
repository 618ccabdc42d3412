"""The origin of recorded figures."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.recording import UNKNOWN, environment, record, recorded


def test_rows_keep_their_origin_and_new_ones_get_that_of_now(tmp_path: Path) -> None:
    old = {"environment": {"cpu": "old"}, "cells": [{"cost": 1}]}
    Path(tmp_path, "results").mkdir()
    Path(tmp_path, "results", "a.json").write_text(json.dumps(old), encoding="utf-8")
    kept = recorded(tmp_path, "a")["cells"]
    record(tmp_path, "a", {"cells": [*kept, {"cost": 2}], "seeds": [1, 2]})
    found = recorded(tmp_path, "a")
    assert found["environment"].keys() >= {"commit", "load", "date", "rooms", "cpu"}
    assert [row["cost"] for row in found["cells"]] == [1, 2]
    assert found["cells"][0]["origin"] == UNKNOWN
    assert f"solver:{environment()['rooms']['solver']}" in found["cells"][1]["origin"]
    assert found["seeds"] == [1, 2]
