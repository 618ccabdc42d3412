"""A whole program in which weights travel, line by line."""

from __future__ import annotations

from pipeloom.compiler import compile_schedule
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.solver.families import build_family


def lines(block: str) -> list[str]:
    return [line.strip() for line in block.strip().splitlines()]


def test_weipipe_interleave_on_two_ranks_with_tied_ends() -> None:
    """Three microbatches: 0 and 2 on rank 0, 1 on rank 1; stage s is owned by rank s.

    ::

        turn    0     1     2         3         4     5
        rank 0  F00 | F10 | B10 F02 | B00 F12 | B12 | B02 |
        rank 1      | F01 | F11     | B11     | B01 |
    """
    profile = Profile((StageProfile(1.0, 1.0, 1.0),) * 2, 2, t_comm=0.25)
    program = compile_schedule(build_family("weipipe-interleave", profile, 3), tied=[(0, 1)])
    assert [list(map(str, row)) for row in program.instructions] == [
        lines(
            """
            recv w1.1 from 1 into 0
            0F0
            recv w1.4 from 1 into 1
            recv w0.2 from 1 into 2
            send w0.0 to 1
            wait recv w1.1
            1F0
            send w1.3 to 1
            wait recv w1.4
            1BW0
            wait send w1.3
            free w1.1
            recv w1.5 from 1 into 0
            wait recv w0.2
            0F2
            send w1.6 to 1
            send dw1.7 to 1
            0BW0
            free w0.2
            wait send w1.6
            free w1.4
            wait send dw1.7
            recv w1.10 from 1 into 1
            recv dw1.11 from 1 into 3
            wait recv w1.5
            1F2
            free w1.5
            recv w0.12 from 1 into 0
            recv dw0.13 from 1 into 4
            send w0.8 to 1
            send dw0.9 to 1
            wait recv w1.10
            wait recv dw1.11
            1BW2
            send dw1.14 to 1
            free w1.10
            wait send dw0.9
            wait send dw1.14
            free dw1.11
            wait recv w0.12
            wait recv dw0.13
            free dw0.13
            0BW2
            free w0.12
            wait send w0.0
            wait send w0.8
            reduce 0 1
            step 0
            """
        ),
        lines(
            """
            recv w0.0 from 0 into 0
            recv w1.3 from 0 into 1
            send w1.1 to 0
            send w1.4 to 0
            wait recv w0.0
            0F1
            recv w1.6 from 0 into 2
            recv dw1.7 from 0 into 3
            send w0.2 to 0
            wait recv w1.3
            1F1
            send w1.5 to 0
            wait send w0.2
            free w0.0
            wait send w1.5
            free w1.3
            recv w0.8 from 0 into 1
            recv dw0.9 from 0 into 4
            wait recv w1.6
            wait recv dw1.7
            1BW1
            send w1.10 to 0
            send dw1.11 to 0
            wait send w1.10
            free w1.6
            wait send dw1.11
            free dw1.7
            recv dw1.14 from 0 into 3
            wait recv w0.8
            wait recv dw0.9
            0BW1
            send w0.12 to 0
            send dw0.13 to 0
            wait send w1.1
            wait send w1.4
            wait recv dw1.14
            free dw1.14
            reduce 0 1
            step 1
            wait send w0.12
            free w0.8
            wait send dw0.13
            free dw0.9
            """
        ),
    ]
    assert [list(map(str, row)) for row in program.buffers] == [
        ["w1", "w1", "w0", "dw1", "dw0"],
        ["w0", "w1", "w1", "dw1", "dw0"],
    ]
