"""What is said of the weight gradients that W computes."""

import pytest

from pipeloom.ir.model.weight_coverage import WeightCoverage, joined, worth_telling


@pytest.mark.parametrize(
    ("in_w", "in_b", "words"),
    [
        ({"a": 4}, {}, "W computes 100 % of stage 1's gradients"),
        ({"a": 996}, {"norm.bias": 4}, "W computes 99.6 % of stage 1's gradients; in B: norm.bias"),
        # not all of them is not 100 %
        ({"a": 10**6}, {"b": 1}, "W computes 99.9 % of stage 1's gradients; in B: b"),
        ({}, {"a": 2}, "W computes 0 % of stage 1's gradients; in B: a"),
        ({}, {}, "W computes 100 % of stage 1's gradients"),
        (
            {},
            {f"layers.{i}.{name}": i for i in (1, 2) for name in ("w1.x", "b", "c", "0")}
            | {"layers.1.c": 7},
            "W computes 0 % of stage 1's gradients; in B: layers.*.c, layers.*.w1.x, layers.*.b "
            "and 1 more",
        ),
    ],
)
def test_words(in_w: dict[str, int], in_b: dict[str, int], words: str) -> None:
    assert str(WeightCoverage(1, in_w, in_b)) == words


def test_the_document_names_what_is_in_b() -> None:
    found = WeightCoverage(0, {"a": 3}, {"b": 1}).to_dict()
    assert found == {"elements": 4, "share": 0.75, "in_b": {"b": 1}}


def test_what_one_rank_found_in_b_is_in_b() -> None:
    rows = [
        {1: WeightCoverage(1, {"a": 3}, {"b": 1})},
        {1: WeightCoverage(1, {"b": 1, "c": 2}, {}), 0: WeightCoverage(0, {"d": 1}, {})},
    ]
    assert joined(rows) == {
        0: WeightCoverage(0, {"d": 1}, {}),
        1: WeightCoverage(1, {"a": 3, "c": 2}, {"b": 1}),
    }


def test_stages_with_next_to_nothing_in_b_are_not_told() -> None:
    stages = [WeightCoverage(s, {"a": 100}, {"b": s}) for s in range(3)]
    assert worth_telling(stages) == ["W computes 98 % of stage 2's gradients; in B: b"]
