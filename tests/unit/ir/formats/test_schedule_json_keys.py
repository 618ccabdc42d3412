"""Keys of other programs inside of transfers and averages are let pass by all who read them."""

from __future__ import annotations

import json
from itertools import chain

from benchmarks.fuzz.documents import sound
from pipeloom.ir.formats import dump_schedule, parse_schedule
from pipeloom.ir.verify.schedule import verify_schedule


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
