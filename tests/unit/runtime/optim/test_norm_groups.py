"""Which processes share a norm, and which parameters are shards: combinations refused at the
start."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeloom.ir import InputError
from tests.support.inside import Processes, Side, check_sides, named_axes

ONE, TWO = (0, 1), (0, 2)


def mesh(*groups: tuple[Processes, ...] | None) -> list[Side]:
    """Processes 0 and 2 are one pipeline, 1 and 3 another; ``groups``: for each process."""
    return [Side(i // 2, (i % 2, i % 2 + 2), groups=own) for i, own in enumerate(groups)]


UNTOLD = mesh(None, None, None, None)


def joined(**changes: object) -> list[Side]:
    """The sides without explicit groups, with a change in the first process."""
    return [replace(UNTOLD[0], **changes), *UNTOLD[1:]]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "sides",
    [
        mesh(*[((0, 1),)] * 2, *[((2, 3),)] * 2),
        mesh((), (), (), ()),
        joined(data=(0, 1)),
        [replace(s, meshes=((0, 1),) * (i < 2)) for i, s in enumerate(UNTOLD)],
        [replace(side, needs_norm=False) for side in UNTOLD],
        [replace(s, data=(0, 1)) for s in mesh(((0, 1),), ((0, 1),), (), ())],
    ],
    ids=["one norm", "told apart", "replicas", "DTensors", "not judged", "experts of replicas"],
)
def test_processes_that_share_a_norm_or_are_known_not_to_are_fine(sides: list[Side]) -> None:
    check_sides(sides)


@pytest.mark.parametrize(
    ("sides", "said"),
    [
        (UNTOLD, r"processes \[0, 2\] and \[1, 3\] judge steps each by its own norm"),
        (joined(groups=()), r"processes \[0, 2\] and \[1, 3\] judge"),
        (mesh(*[((0, 2),), ()] * 2), r"expected those of one rank .*, got \[0, 1\]"),
        (mesh(((0, 1),), (), (), ()), r"expected it as the 1\. on all .*, not so on 1"),
        (mesh(((0,), (0, 1)), ((0, 1), (1,)), (), ()), r"expected it as the 2\. on all"),
        (
            [Side(0, (i,), data=(0, 1, 2), groups=((0, 1),) * (i < 2)) for i in range(3)],
            r"some of data_group \[0, 1, 2\], which averages them",
        ),
        (
            [
                Side(0, (i,), groups=((0, 1),) * (i < 2), meshes=((1, 2),) * (i > 0))
                for i in range(3)
            ],
            r"expected groups that make up one mesh of the processes \[0, 1, 2\]",
        ),
        (joined(meshes=((0, 2),)), r"mesh on processes \[0, 2\]: .* got \[0, 1\]"),
    ],
)
def test_others_are_told_what_they_miss(sides: list[Side], said: str) -> None:
    with pytest.raises(InputError, match=said):
        check_sides(sides)


def test_a_parameter_is_a_shard_over_the_groups_of_all_patterns_that_name_it() -> None:
    patterns = {"table.*": TWO, "h*": TWO, "*p.weight": ONE, "up.*": TWO}
    names = "table.weight", "head.weight", "up.weight", "norm.weight"
    found = [named_axes(0, name, patterns, ()) for name in names]
    assert found == [{TWO}, {TWO}, {ONE, TWO}, set()]


def test_a_pattern_for_a_dtensor_is_refused() -> None:
    with pytest.raises(InputError, match=r"none for a DTensor, .* up\.weight of stage 1"):
        named_axes(1, "up.weight", {"up.*": (0, 3)}, (0, 3))
    assert named_axes(1, "up.weight", {"up.*": ONE}, (0, 3)) == {ONE}


def test_a_group_within_another_one_counts_no_more() -> None:
    every = (0, 1, 2, 3)
    assert named_axes(1, "up.weight", {"up.*": ONE, "*": every}, ()) == {every}
