"""However a file is damaged, a command says what is wrong: no traceback, no internal error."""

from __future__ import annotations

import copy
import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeloom.cli.main import main
from pipeloom.compiler import compile_schedule
from pipeloom.ir.formats import dump_profile, dump_program, dump_schedule
from pipeloom.ir.model.profile import Link, Links, Profile, StageProfile
from pipeloom.solver.families import build_family

PROFILE = Profile(
    (StageProfile(1.0, 1.0, 1.0, 1.0, 0.5, 8.0, 64.0, 64.0),) * 2,
    ranks=2,
    links=Links(Link(0.1, 1.0), ((0, 1, Link(0.2, 2.0)),)),
    memory_limit=(9.0, 9.0),
)
SCHEDULE = build_family("zb-h1", PROFILE, 2)
TRAVELLING = build_family("weipipe-interleave", PROFILE, 2)
DOCUMENTS: dict[str, dict[str, Any]] = {
    "profile": dump_profile(PROFILE),
    "schedule": dump_schedule(SCHEDULE),
    "travelling": dump_schedule(TRAVELLING),
    "program": dump_program(compile_schedule(SCHEDULE)),
}
DOCUMENTS = json.loads(json.dumps(DOCUMENTS))  # lists instead of tuples
COMMANDS = {
    "profile": [
        ["build", "zb-h1", "{}", "-m", "2"],
        ["build", "weipipe-interleave", "{}", "-m", "2"],
    ],
    "schedule": [
        ["show", "{}"],
        ["show", "{}", "--as", "svg"],
        ["compile", "{}"],
        ["verify", "{}"],
    ],
    "travelling": [["show", "{}", "--as", "trace"], ["compile", "{}"], ["verify", "{}"]],
    "program": [["show", "{}"], ["verify", "{}"]],
}
JUNK = st.sampled_from(
    [None, True, -1, 0, 1, 2, 3, 0.5, 1e308, float("nan"), float("inf"), 10**400, "", "x", "9F9", [], [1], {}, {"a": 1}]  # noqa: E501
)  # fmt: skip


def paths(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where every value inside ``value`` is, as keys and positions."""
    inner: Any = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list | tuple):
        inner = enumerate(value)
    for key, item in inner:
        yield (*here, key)
        yield from paths(item, (*here, key))


@contextmanager
def captured() -> Iterator[io.BytesIO]:
    """What goes to standard error meanwhile; standard output is dropped."""
    before, errors = (sys.stdout, sys.stderr), io.BytesIO()
    sys.stdout = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    sys.stderr = io.TextIOWrapper(errors, encoding="utf-8")
    try:
        yield errors
    finally:
        sys.stdout, sys.stderr = before


def damaged(data: st.DataObject, document: dict[str, Any]) -> dict[str, Any]:
    changed = copy.deepcopy(document)
    *parents, key = data.draw(st.sampled_from(list(paths(document))), label="where")
    place = changed
    for parent in parents:
        place = place[parent]
    if data.draw(st.booleans(), label="drop"):
        del place[key]
    else:
        place[key] = data.draw(JUNK, label="junk")
    return changed


@pytest.mark.parametrize("kind", DOCUMENTS)
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_damage_is_reported(tmp_path: Path, kind: str, data: st.DataObject) -> None:
    path = tmp_path / "damaged.json"
    path.write_text(json.dumps(damaged(data, DOCUMENTS[kind])))
    words = data.draw(st.sampled_from(COMMANDS[kind]), label="command")
    with captured() as err:
        code = main([word.format(path) for word in words])
        sys.stderr.flush()
        told = err.getvalue().decode()
    assert code in (0, 1, 2), told
    if code == 2:
        assert all(line.startswith("pipeloom: ") for line in told.splitlines())
