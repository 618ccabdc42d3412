"""Serves a page on this machine to explore profiles, schedules and memory limits.

Ctrl-C ends it. Only this machine can reach it, unless --host is another address.

example:
  pipeloom serve
  pipeloom serve --port 9000 --open
"""

from dataclasses import dataclass

from pipeloom.web.request import ServeRequest

from ...arguments import Command
from ...output import answer


@dataclass(frozen=True, kw_only=True)
class ServeCommand(Command, ServeRequest):
    """The command ``pipeloom serve``: prints the address of the page, and answers requests."""

    def run(self) -> int:
        listening = self.listen()
        answer(self, {"url": listening.url}, listening)
        listening.serve(open_page=self.open)
        return 0
