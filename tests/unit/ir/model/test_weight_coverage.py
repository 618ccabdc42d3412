"""What is said of the weight gradients that W computes."""

from pipeloom.ir.model.weight_coverage import WeightCoverage, joined, worth_telling


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
    (one,) = worth_telling(stages)
    assert str(one) == "W computes 98 % of stage 2's gradients; in B: b"
    assert one.of("head") == "W computes 98 % of head's gradients; in B: b"
