"""The torch CSV: what it looks like, what reads back, and what is refused."""

from __future__ import annotations

import pytest

from pipeloom.compiler.exporters.torch_csv import read, write
from pipeloom.ir.errors import InputError, InvalidScheduleError
from pipeloom.ir.model.ops import format_order
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.profile import Profile, StageProfile
from tests.support.by_hand import UNIT, by_hand

PROFILE = Profile((StageProfile(3.0, 4.0, 2.0), StageProfile(2.0, 5.0, 1.0)), 2, t_comm=0.5)
ROWS = ("0F0 0F1 0B0 0W0 0BW1", "1F0 1B0 1F1 1BW1 1W0")
CSV = """\
0F0,0F1,,0I0,0W0,,0B1
,1F0,1I0,1F1,1B1,,1W0
"""


def test_writes_b_as_i_and_bw_as_b() -> None:
    assert write(by_hand(*ROWS, profile=PROFILE)) == CSV


@pytest.mark.parametrize("text", [CSV, CSV.rstrip(), CSV + "\n", CSV.replace("\n", "\r\n")])
def test_reads_back_with_the_times_of_the_profile(text: str) -> None:
    schedule = read(text, PROFILE)
    assert tuple(format_order(schedule.ops(rank)) for rank in range(2)) == ROWS
    assert schedule.known_timing.end[0][0] == 3.0
    assert schedule.known_timing.start[1][0] == 3.5


def test_reads_the_placement() -> None:
    profile = Profile((UNIT,) * 3, 2)
    schedule = read("0F0,2F0,2B0,0B0\n1F0,1B0\n", profile)
    assert schedule.problem.placement.owners == (0, 1, 0)
    assert schedule.problem.microbatches == 1


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "0F0,0B0\n1F0,1X0\n",
            "x.csv: row 2, column 2: expected e.g. 2F0, 2I0, 2W0 or 2B0, or an empty cell, got "
            "'1X0'",
        ),
        (
            "0F0,0BW0\n1F0,1B0\n",
            "x.csv: row 1, column 2: expected e.g. 2F0, 2I0, 2W0 or 2B0, or an empty cell, got "
            "'0BW0'",
        ),
        ("0F0,,2B0\n1F0,1B0\n", "x.csv: the profile has stages 0..1, got a cell of stage 2"),
        (
            "0F0,0B0\n1F0,1B77\n",
            "x.csv: row 2, column 2: '1B77' has a microbatch beyond the 4 cells of the file",
        ),
        ("0F0,0B0\n", "x.csv: expected 2 rows, one for each of the profile's ranks, got 1"),
        ("", "x.csv: expected 2 rows, one for each of the profile's ranks, got 0"),
    ],
)
def test_a_wrong_cell_is_named(text: str, error: str) -> None:
    with pytest.raises(InputError) as caught:
        read(text, PROFILE, "x.csv")
    assert caught.value.errors == (error,)


def test_every_wrong_cell_is_named() -> None:
    with pytest.raises(InputError) as caught:
        read("0F0,a\nb,1B0\n", PROFILE)
    assert len(caught.value.errors) == 2


@pytest.mark.parametrize(
    ("text", "violation"),
    [
        (
            "0F0\n1F0,1B0\n",
            "stage 0, microbatch 0: expected one F and either one BW or one B and one W",
        ),
        ("0F0,0F0,0B0\n1F0,1B0\n", "stage 0, microbatch 0"),
        ("0F0,0B0,1F0\n1B0\n", "rank 0: 1F0 does not belong there"),
        ("0B0,0F0\n1F0,1B0\n", "rank 0 can never start 0BW0"),
    ],
)
def test_an_impossible_schedule_is_refused(text: str, violation: str) -> None:
    with pytest.raises(InvalidScheduleError, match=violation):
        read(text, PROFILE)


def test_only_schedules_whose_stages_stay_can_be_written() -> None:
    profile = Profile((UNIT,), 2)
    schedule = by_hand("0F0 0BW0", "0F1 0BW1", profile=profile, passing=Passing.WEIGHTS)
    with pytest.raises(InputError, match="torch-csv keeps each stage on one rank; got weights"):
        write(schedule)


def test_a_rank_without_ops_cannot_be_written() -> None:
    schedule = by_hand("0F0 1F0 1BW0 0BW0", "", profile=PROFILE)
    with pytest.raises(InputError, match=r"order\[1\]: torch-csv needs ops on every rank"):
        write(schedule)
