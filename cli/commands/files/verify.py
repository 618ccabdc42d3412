"""Checks a schedule or a program independently of who made it; lists every violation.

example:
  pipeloom verify schedule.json
  pipeloom verify schedule.json program.json --json
  pipeloom verify schedule.json --certificate certificate.json
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeloom.ir.errors import InputError
from pipeloom.planner.requests.fields import option, place

from ...arguments import Command
from ...failures import tell
from ...output import answer


@dataclass(frozen=True, kw_only=True)
class VerifyCommand(Command):
    """The command ``pipeloom verify``: calls :func:`pipeloom.verify` for each file, and prints the
    results.

    The exit code is not 0 if a file is invalid.
    """

    files: Sequence[str] = field(metadata=place("FILE", "+"))
    """schedule or program file, - for standard input"""
    certificate: str | None = option("FILE")
    """certificate of the schedule's lower bound, written by optimize --certificate"""

    def run(self) -> int:
        from pipeloom.planner.verify import verify

        facts, words, code, files = [], [], 0, self.files
        if self.certificate and len(files) > 1:
            raise InputError(f"certificate: expected one schedule, got {len(files)} files")
        for file in files:
            try:
                found = verify(file, certificate=self.certificate)
            except InputError as error:
                if len(files) == 1:
                    raise
                code = tell(error, as_json=False)
                facts.append({"file": file, "error": list(error.lines)})
            else:
                code = max(code, int(not found.ok))
                facts.append({"file": file} | found.to_dict())
                words.append(str(found))
        if self.json or words:
            answer(self, facts[0] if len(facts) == 1 else {"files": facts}, "\n".join(words))
        return code
