"""Whatever a file of measured ops holds: a profile that can be read back, or one readable line."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeloom import InputError, dump_profile, profile_from
from tests.support.inner import parse_profile

ROW = {
    "fwd_start": [0, 2], "fwd_end": [1, 3], "fwd_chunk": [0, 1],
    "bwd_start": [4, 6], "bwd_end": [5, 8], "bwd_chunk": [1, 0],
}  # fmt: skip
TRACE = [
    {"ph": "X", "cat": cat, "name": name, "ts": 10 * at, "dur": 5, "tid": 1}
    for at, (cat, name) in enumerate(
        [
            ("user_annotation", "PP:0F0"),
            ("cpu_op", "aten::mm"),
            ("user_annotation", "PP:0B0"),
            ("gpu_user_annotation", "PP:0F0"),
        ]
    )
]
GOOD: list[Any] = [
    {"traceEvents": TRACE, "distributedInfo": {"rank": 0}},
    TRACE,
    {"config": {"vp_size": 2}, "iterations": {"1": [ROW], "2": [ROW]}},
    {"7": ROW},
]
TABLE = ["stage,microbatch,step,op,ms,rank", "0,0,1,F,2,0", "0,0,1,BW,3,0", "0,1,2,F,9,0"]
ODD = st.sampled_from(
    [None, True, -1, 0, 1e308, float("nan"), "", "x", [], {}, [1, 2], {"a": 1}, 10**30, "PP:9F9"]
)


@st.composite
def spoiled(draw: st.DrawFn) -> str:
    """A good document with something else in some of its places."""
    document = json.loads(json.dumps(draw(st.sampled_from(GOOD))))
    for _ in range(draw(st.integers(0, 3))):
        at: Any = document
        for _ in range(draw(st.integers(0, 4))):
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            inside = [key for key in keys if isinstance(at[key], dict | list)]
            if not inside:
                break
            at = at[draw(st.sampled_from(inside))]
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        if keys:
            at[draw(st.sampled_from(keys))] = deepcopy(draw(ODD))
    return json.dumps(document)


@st.composite
def spoiled_table(draw: st.DrawFn) -> str:
    cells = [line.split(",") for line in TABLE]
    for _ in range(draw(st.integers(0, 3))):
        row = draw(st.sampled_from(cells))
        row[draw(st.integers(0, len(row) - 1))] = draw(
            st.sampled_from(["", "-1", "x", "1e999", "nan", "F", "9" * 30, '"', "٣"])
        )
    return "\n".join(",".join(row) for row in cells)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("measured") / "file"


@given(st.one_of(spoiled(), spoiled_table()))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_profile_or_one_line(path: Path, text: str) -> None:
    path.write_text(text)
    found, lines = None, []
    try:
        found = profile_from(path)
    except InputError as error:
        lines = error.errors
    if found is None:
        assert len(lines) == 1
        assert "\n" not in lines[0]
    else:
        assert parse_profile(dump_profile(found.profile), "profile.json") == found.profile
