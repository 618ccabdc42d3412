"""Errors of running programs."""

from __future__ import annotations

from torch import Tensor

from pipeloom.ir.errors import InputError, PipeloomError


class ExecutionError(PipeloomError):
    """A rank could not run an instruction; the message names rank, position, instruction, peer."""

    exit_code = 1


class ShapeError(PipeloomError):
    """A tensor has another shape or dtype than the one that was agreed on."""

    exit_code = 1


class ChangedInPlaceError(InputError):
    """A ``tensor`` that a backward needs is no more what it was when its forward kept it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        dtype = str(tensor.dtype).removeprefix("torch.")
        super().__init__(
            f"{dtype}{list(tensor.shape)} that the backward needs was changed in place since its "
            "forward, so gradients would be wrong: compute with a copy, or change it out of place"
        )


class LaunchError(PipeloomError):
    """A process of a launch failed.

    ``rank``: the first that did, None where none answered in time; ``details``: its traceback;
    ``exit_code``: that of the error it raised. ``moment``: when it reported that, on the machine's
    monotonic clock; 0 of one that died. ``ours``: whether the error is one of pipeloom's own, which
    says in one line where it happened.
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
    """Words on an error of torch's that does not say what a stage may not do, else none."""
    if "a leaf Variable that requires grad" not in str(error):
        return ""
    return " Its input, or a parameter, is changed in place: expected a copy to be (inplace=False)."
