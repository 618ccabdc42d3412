"""The error for a computation that cannot be traced, and its text."""

from __future__ import annotations

import traceback
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

_TORCH = str(Path(torch.__file__).parent)
_GRAPHS = str(Path(__file__).parents[1])
_DATA = (DataDependentOutputException, DynamicOutputShapeException)


class TraceError(Exception):
    """A computation cannot be traced; the text contains the reason and the line of the model."""


def why(error: BaseException) -> str:
    """Returns the text of a TraceError for an error that was raised while a model was traced.

    It ends with the line of the model's code in which the error occurred.
    """
    if isinstance(error, _DATA):
        what = f"what it computes depends on values in tensors ({error})"
    else:
        text = str(error).strip().splitlines()
        what = f"{type(error).__name__}: {text[0] if text else ''}"
    return f"{what}{_where(error)}"


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith((_TORCH, _GRAPHS)) and f.line]
    if not own:
        return ""
    return f", at {Path(own[-1].filename).name}:{own[-1].lineno}: {own[-1].line}"
