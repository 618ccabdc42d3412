"""What can go wrong while a program runs."""

from __future__ import annotations

from pipeloom.ir.errors import PipeloomError


class ExecutionError(PipeloomError):
    """A rank could not run an instruction; the message names rank, position, instruction, peer."""

    exit_code = 1


class ShapeError(PipeloomError):
    """A tensor has another shape or dtype than the one that was agreed on."""

    exit_code = 1


class LaunchError(PipeloomError):
    """A process of a launch failed; ``rank`` is the first that did, ``details`` its traceback."""

    exit_code = 1

    def __init__(self, message: str, *, rank: int | None = None, details: str = "") -> None:
        self.rank = rank
        self.details = details
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        return _launch_error, (str(self), self.rank, self.details)


def _launch_error(message: str, rank: int | None, details: str) -> LaunchError:
    return LaunchError(message, rank=rank, details=details)
