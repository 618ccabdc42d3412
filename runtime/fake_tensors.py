"""Tensors that have shapes and dtypes, and take no memory: what is computed with them is not.

Of torch's fake tensors all that is used here is in this file; tried on torch 2.13.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

DEPENDS_ON_VALUES = (DataDependentOutputException, DynamicOutputShapeException)


def faked() -> AbstractContextManager[object]:
    """A context in which new tensors are fake, and what is computed with them and with others."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def really() -> AbstractContextManager[Any]:
    """A context within in which tensors are computed as ever."""
    found: AbstractContextManager[Any] = unset_fake_temporarily()
    return found


def is_faked() -> bool:
    """Whether new tensors are fake."""
    return any(isinstance(mode, FakeTensorMode) for mode in _get_current_dispatch_mode_stack())
