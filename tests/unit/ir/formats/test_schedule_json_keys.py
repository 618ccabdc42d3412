"""Keys of a schedule that other programs, or older versions, have written."""

from __future__ import annotations

import json
from itertools import chain

import pytest

from pipeloom.ir.formats import dump_schedule, parse_schedule
from pipeloom.ir.verify.schedule import verify_schedule
from tests.fuzz.documents import sound


def test_unknown_keys_of_transfers_and_averages_are_let_pass() -> None:
    read = 0
    for document in sound()["schedule"]:
        before = json.dumps(dump_schedule(parse_schedule(document, "s.json")))
        changed = json.loads(json.dumps(document))
        for entry in (*(changed.get("transfers") or ()), *chain(*(changed.get("averages") or ()))):
            entry["T_F"], read = 1, read + 1
        assert json.dumps(dump_schedule(parse_schedule(changed, "s.json"))) == before
        assert verify_schedule(changed) == []
    assert read


@pytest.mark.parametrize(
    ("written", "family", "method", "bound"),
    [
        ({"family": "search", "bound_name": "slots"}, "optimized", "search", "slots"),
        ({"family": "zb-h1", "bound_name": "lanes"}, "zb-h1", None, "crossings-search"),
        ({}, "", None, None),
        ({"family": "optimized", "method": "new", "bound": "b"}, "optimized", "new", "b"),
    ],
)
def test_method_and_bound_may_be_missing_unknown_or_of_before(
    written: dict[str, str], family: str, method: str | None, bound: str | None
) -> None:
    document = json.loads(json.dumps(sound()["schedule"][0]))
    named = ("family", "method", "bound", "bound_name")
    known = {key: value for key, value in document["report"].items() if key not in named}
    document["report"] = known | written
    report = parse_schedule(document, "s.json").known_report
    assert (report.family, report.method, report.bound) == (family, method, bound)
    assert verify_schedule(document) == []
    again = dump_schedule(parse_schedule(document, "s.json"))["report"]
    assert (again["family"], again["method"], again["bound"]) == (family, method, bound)
