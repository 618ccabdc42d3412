"""Ops as objects, as text and packed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeloom.ir.model.ops import Op, OpKind, format_order, pack, parse_order, unpack

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
