"""Compiles a schedule to a program: a list of instructions for each rank.

example:
  pipeloom compile schedule.json -o program.json
  pipeloom compile schedule.json --tied 0,3 -o program.json
  pipeloom compile schedule.json --post-validation -o program.json
  pipeloom compile schedule.json --data-parallel -o program.json
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeloom.ir.units import counted
from pipeloom.planner.requests.files import CompileRequest

from ...arguments import WritingCommand
from ...output import check_output, finish
from ...progress import ProgressDisplay


@dataclass(frozen=True, kw_only=True)
class CompileCommand(WritingCommand, CompileRequest):
    """The command ``pipeloom compile``: calls :func:`pipeloom.compile`, and writes the program."""

    def run(self) -> int:
        from pipeloom.ir.formats import dump_program
        from pipeloom.planner.compile import compile, program_facts  # noqa: A004

        check_output(self)
        program = compile(**self.arguments(CompileRequest) | {"progress": ProgressDisplay()})
        facts = program_facts(program)
        words = (
            f"{counted(sum(facts['instructions']), 'instruction')} on "
            f"{counted(facts['ranks'], 'rank')}, "
            f"at most {counted(max(facts['buffers']), 'receive buffer')} on one"
        )
        finish(self, dump_program(program), facts, words)
        return 0
