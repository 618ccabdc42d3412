"""Whole programs of small schedules: what the compiler makes of them, line by line."""

from __future__ import annotations

from pipeloom.compiler import compile_schedule
from pipeloom.ir.model.ops import parse_order
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.program import Program
from pipeloom.ir.model.schedule import Schedule


def schedule(owners: tuple[int, ...], *rows: str) -> Schedule:
    """T_F = T_B = T_W = 1, t_comm = 0.1 and stage s on rank ``owners[s]``."""
    order = [parse_order(row) for row in rows]
    microbatches = 1 + max(op.microbatch for row in order for op in row)
    profile = Profile((StageProfile(1.0, 1.0, 1.0),) * len(owners), len(rows), t_comm=0.1)
    placement = Placement.of_stages(owners)
    unlimited = (float("inf"),) * len(rows)
    return Schedule.of(Problem(profile, microbatches, placement, unlimited), order, "by hand")


def text(program: Program) -> list[list[str]]:
    """One list a rank, one instruction a string."""
    return [list(map(str, row)) for row in program.instructions]


def lines(block: str) -> list[str]:
    return [line.strip() for line in block.strip().splitlines()]


def test_1f1b_with_tied_ends() -> None:
    program = compile_schedule(
        schedule((0, 1), "0F0 0F1 0BW0 0F2 0BW1 0BW2", "1F0 1BW0 1F1 1BW1 1F2 1BW2"), tied=[(0, 1)]
    )
    assert text(program) == [
        lines(
            """
            0F0
            send x1.0 to 1
            recv dy0.0 from 1 into 0
            0F1
            send x1.1 to 1
            recv dy0.1 from 1 into 1
            wait send x1.0
            wait recv dy0.0
            0BW0
            free dy0.0
            wait send x1.1
            0F2
            send x1.2 to 1
            recv dy0.2 from 1 into 0
            wait recv dy0.1
            0BW1
            free dy0.1
            wait send x1.2
            wait recv dy0.2
            0BW2
            free dy0.2
            reduce 0 1
            step 0
            """
        ),
        lines(
            """
            recv x1.0 from 0 into 0
            recv x1.1 from 0 into 1
            wait recv x1.0
            1F0
            1BW0
            send dy0.0 to 0
            free x1.0
            wait recv x1.1
            1F1
            recv x1.2 from 0 into 0
            wait send dy0.0
            1BW1
            send dy0.1 to 0
            free x1.1
            wait recv x1.2
            1F2
            wait send dy0.1
            1BW2
            send dy0.2 to 0
            free x1.2
            reduce 0 1
            step 1
            wait send dy0.2
            """
        ),
    ]
    assert [list(map(str, row)) for row in program.buffers] == [["dy0", "dy0"], ["x1", "x1"]]


def test_deferred_weight_gradients_keep_what_they_read() -> None:
    program = compile_schedule(schedule((0, 1), "0F0 0B0 0W0", "1F0 1B0 1W0"))
    assert text(program) == [
        lines(
            """
            recv dy0.0 from 1 into 0
            0F0
            send x1.0 to 1
            wait recv dy0.0
            0B0
            wait send x1.0
            0W0
            free dy0.0
            step 0
            """
        ),
        lines(
            """
            recv x1.0 from 0 into 0
            wait recv x1.0
            1F0
            1B0
            send dy0.0 to 0
            1W0
            free x1.0
            step 1
            wait send dy0.0
            """
        ),
    ]


def test_one_rank_sends_nothing() -> None:
    program = compile_schedule(schedule((0, 0), "0F0 1F0 1BW0 0BW0"))
    assert text(program) == [["0F0", "1F0", "1BW0", "0BW0", "step 0", "step 1"]]
    assert program.buffers == ((),)


def test_neighbours_on_one_rank_need_no_message() -> None:
    program = compile_schedule(
        schedule((0, 1, 1, 0), "0F0 3F0 3BW0 0BW0", "1F0 2F0 2BW0 1BW0"), tied=[[3, 0]]
    )
    assert text(program) == [
        lines(
            """
            recv x3.0 from 1 into 0
            0F0
            send x1.0 to 1
            wait recv x3.0
            3F0
            recv dy0.0 from 1 into 1
            wait send x1.0
            3BW0
            send dy2.0 to 1
            free x3.0
            wait recv dy0.0
            0BW0
            free dy0.0
            reduce 0 3
            step 0
            step 3
            wait send dy2.0
            """
        ),
        lines(
            """
            recv x1.0 from 0 into 0
            wait recv x1.0
            1F0
            recv dy2.0 from 0 into 1
            2F0
            send x3.0 to 0
            wait recv dy2.0
            2BW0
            free dy2.0
            wait send x3.0
            1BW0
            send dy0.0 to 0
            free x1.0
            step 1
            step 2
            wait send dy0.0
            """
        ),
    ]


def test_1f1b_that_steps_ahead_of_the_norm() -> None:
    """The verdict stands after the first forwards; what comes after the sender's is received
    later."""
    program = compile_schedule(
        schedule((0, 1), "0F0 0F1 0BW0 0BW1", "1F0 1BW0 1F1 1BW1"), post_validation=True
    )
    assert text(program) == [
        lines(
            """
            0F0
            send x1.0 to 1
            0F1
            send x1.1 to 1
            relay verdict from 1
            recv dy0.0 from 1 into 0
            recv dy0.1 from 1 into 1
            wait send x1.0
            wait recv dy0.0
            0BW0
            free dy0.0
            wait send x1.1
            wait recv dy0.1
            0BW1
            free dy0.1
            relay sums to 1
            step 0
            """
        ),
        lines(
            """
            relay verdict to 0
            recv x1.0 from 0 into 0
            recv x1.1 from 0 into 1
            wait recv x1.0
            1F0
            1BW0
            send dy0.0 to 0
            free x1.0
            wait recv x1.1
            1F1
            wait send dy0.0
            1BW1
            send dy0.1 to 0
            free x1.1
            relay sums from 0
            step 1
            wait send dy0.1
            """
        ),
    ]
