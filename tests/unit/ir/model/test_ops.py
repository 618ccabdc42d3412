"""Ops and instructions as text, weight versions, and small things said in words."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from pipeloom.cli.arguments import limit
from pipeloom.compiler import compile_schedule
from pipeloom.compiler.exporters import EXPORTERS
from pipeloom.ir import (
    Compute,
    Free,
    InputError,
    Instruction,
    InvalidScheduleError,
    Op,
    OpKind,
    Profile,
    Receive,
    Reduce,
    Relay,
    RelayKind,
    Schedule,
    Send,
    StageProfile,
    Step,
    Tensor,
    TensorKind,
    Updates,
    WaitReceive,
    WaitSend,
    dump_schedule,
    footprint,
    format_order,
    parse_instruction,
    parse_order,
    parse_schedule,
)
from pipeloom.ir.formats import schedule_document
from pipeloom.ir.model.ops import pack, unpack
from pipeloom.ir.model.schedule import staleness, versions
from pipeloom.ir.model.weight_coverage import WeightCoverage, joined
from pipeloom.ir.units import amount, sufficient_size
from pipeloom.report.text_table import table
from pipeloom.solver import build_family

# ops as objects, as text and packed ---------------------------------------------------------------


PLACES = st.integers(0, 2**16 - 1), st.integers(0, 2**40 - 1)
OPS = st.builds(Op, st.sampled_from(OpKind), *PLACES)


def test_an_op_prints_as_stage_kind_microbatch() -> None:
    texts = ["2F10", "2B10", "2W10", "2BW10", "2R10", "2O10", "2L10"]
    assert [str(Op(kind, 2, 10)) for kind in OpKind] == texts


@given(OPS)
def test_text_reads_back(op: Op) -> None:
    assert Op.parse(str(op)) == op


@given(st.lists(OPS))
def test_packed_reads_back(ops: list[Op]) -> None:
    assert unpack(pack(ops)) == ops
    assert [Op.unpack(op.packed) for op in ops] == ops


def test_the_packed_form_is_bits_of_kind_stage_and_microbatch() -> None:
    assert Op(OpKind.BW, 0, 0).packed == 3
    assert Op(OpKind.L, 0, 0).packed == 6
    assert Op(OpKind.F, 1, 0).packed == 8
    assert Op(OpKind.F, 0, 1).packed == 2**23


def test_an_order_is_ops_with_spaces() -> None:
    order = [Op(OpKind.F, 0, 0), Op(OpKind.BW, 0, 0)]
    assert format_order(order) == "0F0 0BW0"
    assert parse_order(" 0F0  0BW0 ") == order


@pytest.mark.parametrize(
    "text", ["", "F0", "0F", "0G0", "0F0 ", "-1F0", "0WB0", "0f0", "0F0@1", "0R0@1"]
)
def test_what_is_no_op_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not an op: .* \(expected e\.g\. 2F0"):
        Op.parse(text)


# instructions as text and back --------------------------------------------------------------------


X, DW = Tensor(TensorKind.X, 1, 0), Tensor(TensorKind.GRADIENT, 2, 15)


@pytest.mark.parametrize(
    ("text", "instruction"),
    [
        ("recv x1.0 from 0 into 3", Receive(X, 0, 3)),
        ("wait recv x1.0", WaitReceive(X)),
        ("1F0", Compute(Op(OpKind.F, 1, 0))),
        ("1BW12", Compute(Op(OpKind.BW, 1, 12))),
        ("send dw2.15 to 2", Send(DW, 2)),
        ("wait send dw2.15", WaitSend(DW)),
        ("free x1.0", Free(X)),
        ("reduce 0 7", Reduce((0, 7))),
        ("step 1", Step(1)),
        ("relay sums to 1", Relay(RelayKind.SUMS, None, 1)),
        ("relay sums from 1", Relay(RelayKind.SUMS, 1, None)),
        ("relay verdict from 12 to 0", Relay(RelayKind.VERDICT, 12, 0)),
    ],
)
def test_each_form_reads_back(text: str, instruction: Instruction) -> None:
    assert str(instruction) == text
    assert parse_instruction(text) == instruction


@pytest.mark.parametrize(
    "text",
    [
        "",
        "recv x1.0 from 0",
        "send x1 to 0",
        "free z1.0",
        "step",
        "reduce",
        "1G0",
        "step 1 ",
        "relay",
        "relay sums to",
        "relay sum to 1",
    ],
)
def test_what_is_no_instruction_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="an instruction, such as"):
        TypeAdapter(schedule_document.Instruction).validate_python(text)


# pipeDream: a step after each microbatch's gradient, versions of weights, and what is checked o ---


def built(ranks: int, microbatches: int, name: str = "pipedream") -> Schedule:
    stage = StageProfile(1.0, 1.0, 1.0, weight_bytes=10.0)
    return build_family(name, Profile((stage,) * ranks, ranks), microbatches)


def test_a_stage_lags_by_the_stages_after_it() -> None:
    assert staleness(built(4, 8)) == (3, 2, 1, 0)
    assert versions(built(4, 8)) == (4, 3, 2, 1)
    assert staleness(built(4, 2)) == (1, 1, 1, 0)
    assert staleness(built(4, 8, "1f1b")) == (0, 0, 0, 0)
    assert versions(built(4, 8, "1f1b")) == (1, 1, 1, 1)


def test_all_versions_count_as_memory() -> None:
    assert footprint(built(3, 6)).weights == (30.0, 20.0, 10.0)


def test_a_step_follows_each_gradient_once_it_is_sent() -> None:
    row = [str(item) for item in compile_schedule(built(2, 3)).instructions[1]]
    kept = [text for text in row if not text.startswith(("recv", "wait", "free"))]
    assert kept == [
        "1F0", "1BW0", "send dy0.0 to 0", "step 1",
        "1F1", "1BW1", "send dy0.1 to 0", "step 1",
        "1F2", "1BW2", "send dy0.2 to 0", "step 1",
    ]  # fmt: skip


def test_the_file_says_so() -> None:
    document = dump_schedule(built(2, 3))
    assert document["updates"] == "microbatch"
    assert parse_schedule(document, "s.json").updates is Updates.MICROBATCH
    assert "updates" not in dump_schedule(built(2, 3, "1f1b"))
    with pytest.raises(InputError, match="updates: expected iteration or microbatch, got 3"):
        parse_schedule(document | {"updates": 3}, "s.json")


def test_what_cannot_be_stepped_within_an_iteration() -> None:
    with pytest.raises(InputError, match=r"tied: expected none where updates come after each"):
        compile_schedule(built(2, 3), tied=[[0, 1]])
    chimera = build_family("chimera", built(2, 4).problem.profile, 4)
    with pytest.raises(InvalidScheduleError, match="expected each stage on one rank"):
        compile_schedule(replace(chimera, updates=Updates.MICROBATCH))


def test_what_steps_once_an_iteration_cannot_take_it() -> None:
    with pytest.raises(
        InputError, match="updates: torch-csv steps once an iteration; got microbatch"
    ):
        EXPORTERS["torch-csv"].write(built(2, 3))


# what is said of the weight gradients that W computes ---------------------------------------------


def test_what_one_rank_found_in_b_is_in_b() -> None:
    rows = [
        {1: WeightCoverage(1, {"a": 3}, {"b": 1})},
        {1: WeightCoverage(1, {"b": 1, "c": 2}, {}), 0: WeightCoverage(0, {"d": 1}, {})},
    ]
    assert joined(rows) == {
        0: WeightCoverage(0, {"d": 1}, {}),
        1: WeightCoverage(1, {"a": 3, "c": 2}, {"b": 1}),
    }


# sizes, times and counts in words -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("memory", "words", "exact"),
    [
        (0.0, "0", "0"),
        (7.94, "7.94", "7.94"),
        (999.5, "999.5", "999.5"),
        (2_000_000_000, "2 G", "2 GB"),
        (1_610_612_736, "1.611 G", "1.6107 GB"),
        (123_456_789_012_345, "123.5 T", "123.46 TB"),
        (2.5e15, "2.5 P", "2.5 PB"),
        (math.inf, "none", "none"),
    ],
)
def test_sizes_are_spelled_in_one_way(memory: float, words: str, exact: str) -> None:
    assert (amount(memory), sufficient_size(memory)) == (words, exact)


@pytest.mark.parametrize("memory", [1 / 3, 1234.5678, 1_610_612_735, 7**17, 2**49 + 1])
def test_a_size_that_suffices_can_be_typed_as_a_limit(memory: float) -> None:
    assert memory <= limit(sufficient_size(memory)) <= memory * (1 + 1e-4)


def test_times_in_a_column_have_one_unit_unless_that_takes_an_exponent() -> None:
    assert table(["idle"], [[2e4], [4e-4]]).split("\n")[2:] == ["20 s", "0.4 us"]
    rows = table(["rank", "idle"], [["0", 0.8], ["1", 12.0], ["2", None], ["3", 0.0]]).splitlines()
    assert [row[4:].strip() for row in rows[2:]] == ["0.8 ms", "12 ms", "-", "0"]
