"""Errors of running programs."""

from __future__ import annotations

from torch import Tensor

from pipeloom.ir.errors import InputError, PipeloomError


class ExecutionError(PipeloomError):
    """A rank could not run an instruction; the message names rank, position, instruction, peer."""

    exit_code = 1


class ShapeError(PipeloomError):
    """A tensor, batch or output has another shape, dtype or structure than expected."""

    exit_code = 1


class ChangedInPlaceError(InputError):
    """A ``tensor`` that a backward needs was modified in place since its forward."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        dtype = str(tensor.dtype).removeprefix("torch.")
        super().__init__(
            f"{dtype}{list(tensor.shape)} that the backward needs was changed in place since its "
            "forward, so gradients would be wrong: compute with a copy, or change it out of place"
        )


class LaunchError(PipeloomError):
    """A process of a launch failed.

    ``rank``: the global rank of the process that failed first; None if the processes did not answer
    in time. ``details``: the traceback of the error that this process raised. ``exit_code``: the
    exit code of that error. ``moment``: when the process reported it, in seconds of the machine's
    monotonic clock; 0 if the process died. ``ours``: whether the error is one of pipeloom's, whose
    message states in one line where it happened.
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int | None = None,
        details: str = "",
        exit_code: int = 1,
        moment: float = 0.0,
        ours: bool = False,
    ) -> None:
        self.rank, self.details, self.exit_code = rank, details, exit_code
        self.moment, self.ours = moment, ours
        super().__init__(message)


def advice(error: Exception) -> str:
    """Returns advice to append to the message of ``error``; "" if there is none.

    There is advice for torch's error about an in-place change of a leaf tensor, as the message of
    that error does not explain the problem.
    """
    if "a leaf Variable that requires grad" not in str(error):
        return ""
    return " Its input, or a parameter, is changed in place: expected a copy to be (inplace=False)."
