"""The schedule verifier: what is valid passes, and each kind of breach is named."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pipeloom.ir.errors import InputError
from pipeloom.ir.formats.schedule_json import dump_schedule
from pipeloom.ir.model.ops import parse_order
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.solver.families import build_family
from tests.support.by_hand import by_hand

Document = dict[str, Any]

# t_comm 0.5; the times that `verify` must find are worked out by hand:
#   rank 0  0F0 0-2   0F1 2-4   0B0 6-7   0W0 7-8   0B1 9-10   0W1 10-11
#   rank 1  1F0 2.5-3.5  1B0 3.5-5.5  1F1 5.5-6.5  1B1 6.5-8.5  1W0 8.5-9  1W1 9-9.5
PROFILE = Profile(
    (StageProfile(2.0, 1.0, 1.0, 4.0, 1.0), StageProfile(1.0, 2.0, 0.5, 4.0, 3.0)), 2, t_comm=0.5
)
ORDER = ("0F0 0F1 0B0 0W0 0B1 0W1", "1F0 1B0 1F1 1B1 1W0 1W1")


def written_by_hand() -> Document:
    def row(text: str, times: str) -> list[Document]:
        spans = [tuple(map(float, span.split("-"))) for span in times.split()]
        return [
            {
                "op": op.kind.name,
                "stage": op.stage,
                "microbatch": op.microbatch,
                "start": a,
                "end": b,
            }
            for op, (a, b) in zip(parse_order(text), spans, strict=True)
        ]

    stage_keys = ("t_f", "t_b", "t_w", "m_b", "m_w")
    return {
        "format": "pipeloom.schedule",
        "version": 1,
        "passing": "activations",
        "ranks": 2,
        "stages": 2,
        "microbatches": 2,
        "profile": {
            "format": "pipeloom.profile",
            "version": 1,
            "stages": [
                dict(zip(stage_keys, (2.0, 1.0, 1.0, 4.0, 1.0), strict=True)),
                dict(zip(stage_keys, (1.0, 2.0, 0.5, 4.0, 3.0), strict=True)),
            ],
            "ranks": 2,
            "t_comm": 0.5,
        },
        "memory_limit": [8.0, 7.0],
        "order": [
            row(ORDER[0], "0-2 2-4 6-7 7-8 9-10 10-11"),
            row(ORDER[1], "2.5-3.5 3.5-5.5 5.5-6.5 6.5-8.5 8.5-9 9-9.5"),
        ],
        "report": {
            "objective": "period",
            "period": 11.0,
            "makespan": 11.0,
            "bubble_rate": 1 - 15 / 22,
            "lower_bound": 8.8,
            "gap": 0.2,
            "status": "feasible",
            "peak_memory": [8.0, 7.0],
            "family": "by hand",
        },
    }


def test_a_valid_schedule_has_no_violations() -> None:
    assert verify_schedule(written_by_hand()) == []


def test_the_simulator_agrees() -> None:
    schedule = by_hand(*ORDER, profile=replace(PROFILE, memory_limit=(8.0, 7.0)))
    document = json.loads(json.dumps(dump_schedule(schedule)))
    assert document["order"] == written_by_hand()["order"]
    assert verify_schedule(document) == []


def shift(document: Document, rank: int, at: int, by: float) -> None:
    for op in document["order"][rank][at:]:
        op["start"] += by
        op["end"] += by


def swap(row: list[Document], at: int) -> None:
    row[at], row[at + 1] = row[at + 1], row[at]


def move(document: Document) -> None:
    document["order"][0].append(document["order"][1].pop())


AGAIN = {"op": "W", "stage": 1, "microbatch": 1, "start": 9.5, "end": 10.0}
TRANSFER = {"tensor": "weight", "stage": 0, "copy": 0, "from": 0, "to": 1, "after": 0, "before": 0}
TRANSFER |= {"start": 0.0, "end": 0.5}


def report(key: str, value: object) -> Callable[[Document], None]:
    def change(document: Document) -> None:
        document["report"][key] = value

    return change


@pytest.mark.parametrize(
    ("break_it", "expected"),
    [
        (lambda d: d["order"][1].pop(), "1W1 never runs"),
        (lambda d: d["order"][1].append(AGAIN),
         "1W1 runs 2 times, expected once: rank 1 op 5, rank 1 op 6"),
        (lambda d: d["order"][0][4].update(op="BW"),
         "0BW1 runs beside a separate 0B1 or 0W1: rank 0 op 4"),
        (move, "rank 1 runs 1F0 (op 0), but rank 0 runs 1W1: where passing is activations, stage 1"),  # noqa: E501
        (lambda d: swap(d["order"][0], 2), "rank 0 runs 0W0 (op 2) before 0B0 (op 3)"),
        (lambda d: swap(d["order"][1], 0), "rank 1 runs 1B0 (op 0) before 1F0 (op 1)"),
        (lambda d: shift(d, 0, 2, -0.5),
         "rank 0 starts 0B0 (op 2) at 5.5, before 6, when 1B0 of rank 1 has come"),
        (lambda d: shift(d, 1, 4, 0.001),
         "rank 1 starts 1W0 (op 4) at 8.501, after 8.5, when 1B1 of the same rank ends"),
        (lambda d: shift(d, 0, 1, -1.0),
         "rank 0 starts 0F1 (op 1) at 1, before 2, when 0F0 of the same rank ends"),
        (lambda d: d["order"][1][5].update(end=9.4),
         "rank 1 ends 1W1 (op 5) at 9.4, expected 9.5: its start and its duration"),
        (lambda d: d.update(memory_limit=[8.0, 6.99]),
         "rank 1 holds 7 from 5.5, when 1F1 (op 2) starts, more than its memory limit 6.99"),
        (lambda d: d.update(memory_limit=3.0),
         "rank 0 holds 4 from 0, when 0F0 (op 0) starts, more than its memory limit 3"),
        (lambda d: d.update(transfers=[TRANSFER]),
         "transfers: expected none where activations are passed, got 1"),
        (report("period", 10.0), "report: period: expected 11, by the starts and ends of ops, got 10.0"),  # noqa: E501
        (report("period", None), "report: period: expected 11"),
        (report("makespan", 11.1), "report: makespan: expected 11"),
        (report("bubble_rate", 0.25), "report: bubble_rate: expected 0.318181818"),
        (report("peak_memory", [8.0, 6.0]), "report: peak_memory: rank 1 holds at most 7, got 6.0"),
        (report("peak_memory", [8.0]), "report: peak_memory: expected one number a rank"),
        (report("gap", 0.1), "report: gap: expected 0.2"),
        (report("lower_bound", 11.1), "report: lower_bound: 11.1 is more than the cost 11"),
        (report("lower_bound", None), "report: gap: expected none without a lower bound"),
        (report("status", "optimal"), "report: status: optimal, but the cost 11 is above the bound 8.8"),  # noqa: E501
        (report("status", None), "report: status: expected optimal or feasible"),
        (report("objective", None), "report: objective: expected period or makespan"),
        (report("objective", "makespan"), None),
    ],
)  # fmt: skip
def test_each_breach_is_named(break_it: Callable[[Document], None], expected: str | None) -> None:
    document = written_by_hand()
    break_it(document)
    violations = verify_schedule(document)
    if expected is None:
        assert violations == []
    else:
        assert any(line.startswith(expected) for line in violations), violations


def test_optimal_without_a_bound_is_refused() -> None:
    document = written_by_hand()
    document["report"] |= {"lower_bound": None, "gap": None, "status": "optimal"}
    assert verify_schedule(document) == ["report: status: optimal, but there is no lower bound"]


def test_optimal_where_bound_and_cost_are_equal() -> None:
    document = written_by_hand()
    document["report"] |= {"lower_bound": 11.0 - 1e-6, "gap": 0.0, "status": "optimal"}
    assert verify_schedule(document) == []


def parent(document: Any, path: str) -> tuple[Any, Any]:
    """What holds the value at a dotted path, and its key there."""
    *keys, last = (int(key) if key.isdigit() else key for key in path.split("."))
    for key in keys:
        document = document[key]
    return document, last


def faults(document: Any) -> tuple[str, ...]:
    """What the verifier says of a document that it cannot read."""
    with pytest.raises(InputError) as caught:
        verify_schedule(document)
    return caught.value.errors


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("stages", 3, "stages: expected 2, as in its profile, got 3"),
        ("microbatches", 1, "order[0][1]: 0F1 is outside 2 stages and 1 microbatch"),
        ("order.0.0", 7, "order[0][0]: expected an object, got 7"),
        ("order.0.0.stage", 0.0, "order[0][0]: stage: expected a whole number"),
        ("order.0.0.start", -1, "order[0][0]: start: expected a finite number"),
        ("order.0.0.end", float("nan"), "order[0][0]: end: expected a finite"),
        ("profile.stages.1.t_b", "x", "profile: stages[1]: t_b: expected a"),
        ("report", None, "report: expected an object, got null"),
        ("report.bubble_rate", True, "report: bubble_rate: expected a finite"),
        ("report.lower_bound", -1.0, "report: lower_bound: expected a finite"),
        ("report.peak_memory", 7, "report: peak_memory: expected a list, got 7"),
        ("report.objective", "speed", "report: objective: expected period or"),
    ],
)
def test_a_wrong_shape_is_wrong_input(path: str, value: object, expected: str) -> None:
    document = written_by_hand()
    inner, key = parent(document, path)
    inner[key] = value
    assert any(line.startswith(f"schedule: {expected}") for line in faults(document))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("memory_limit", "memory_limit: missing; expected one number a rank, or null"),
        ("profile.stages.1.t_w", "profile: stages[1]: t_w: missing; expected a finite"),
        ("order.1.0.start", "order[1][0]: start: missing; expected a finite number >= 0"),
        ("report.status", "report: status: missing; expected a value, or null"),
        ("report", "report: missing; expected an object"),
    ],
)
def test_a_missing_key_is_wrong_input(path: str, expected: str) -> None:
    document = written_by_hand()
    inner, key = parent(document, path)
    del inner[key]
    (line,) = faults(document)
    assert line.startswith(f"schedule: {expected}")


@pytest.mark.parametrize("document", [{"format": "pipeloom.program"}, {"format": 7}])
def test_another_format_is_refused(document: Document) -> None:
    with pytest.raises(InputError, match=r"format: expected \"pipeloom.schedule\""):
        verify_schedule(document)


@pytest.mark.parametrize("document", [{}, [], None, 3])
def test_what_is_no_document_at_all_is_wrong_input(document: Any) -> None:
    assert faults(document) != ()


def test_many_missing_ops_are_named_up_to_a_point() -> None:
    document = written_by_hand()
    document["microbatches"] = 4 * 10**5
    assert 50 <= len(verify_schedule(document)) < 100


def test_links_give_the_delays_where_there_is_no_t_comm() -> None:
    document = written_by_hand()
    profile = document["profile"]
    del profile["t_comm"]
    slow = {"latency": 0.1, "gigabytes_per_second": 1.0}
    profile["links"] = {"latency": 9.0, "gigabytes_per_second": 1.0, "pairs": [[1, 0, slow]]}
    profile["stages"][0]["activation_bytes"] = 0.4e6  # 0.4 ms, both ways
    profile["stages"][1]["activation_bytes"] = 8.0e6  # sent to nobody
    assert verify_schedule(document) == []
    profile["links"]["pairs"] = []
    late = "rank 1 starts 1F0 (op 0) at 2.5, before 11.4, when 0F0 of rank 0 has come"
    assert late in verify_schedule(document)


def test_a_delay_matrix_is_read_by_sender() -> None:
    document = written_by_hand()
    document["profile"]["t_comm"] = [[7.0, 0.5], [0.5, 7.0]]
    assert verify_schedule(document) == []
    document["profile"]["t_comm"] = [[0.0, 0.5], [0.25, 0.0]]
    assert verify_schedule(document) == [
        "rank 0 starts 0B0 (op 2) at 6, after 5.75, when 1B0 of rank 1 has come",
        "rank 0 starts 0B1 (op 4) at 9, after 8.75, when 1B1 of rank 1 has come",
    ]


def test_stages_may_share_one_entry() -> None:
    document = dump_schedule(build_family("1f1b", Profile((StageProfile(1, 1, 1),) * 3, 3), 4))
    profile = document["profile"]
    profile["stages"], profile["num_stages"] = profile["stages"][:1], 3
    assert verify_schedule(document) == []


def weight_passing() -> Document:
    profile = Profile((StageProfile(1.0, 1.0, 0.5), StageProfile(2.0, 2.0, 0.5)), 2, t_comm=0.25)
    return json.loads(json.dumps(dump_schedule(build_family("weipipe-interleave", profile, 4))))  # type: ignore[no-any-return]


def test_an_op_waits_for_the_weights_that_it_needs() -> None:
    document = weight_passing()
    for transfer in document["transfers"]:
        transfer["end"] += 1.0
    found = verify_schedule(document)
    assert any(v.startswith("rank ") and "when a weight or gradient has come" in v for v in found)


def test_microbatches_stay_on_their_rank_where_weights_travel() -> None:
    document = weight_passing()
    document["order"][0].append(document["order"][1].pop())
    assert any("where passing is weights, microbatch" in v for v in verify_schedule(document))


def test_pairs_stay_on_their_rank_where_both_travel() -> None:
    document = dump_schedule(by_hand(*ORDER, profile=PROFILE))
    mixed = copy.deepcopy(document)
    mixed |= {"passing": "mixed", "placement": None}
    assert verify_schedule(mixed) == []
    move(mixed)
    assert any("where passing is mixed, stage 1, 1 lives" in v for v in verify_schedule(mixed))
