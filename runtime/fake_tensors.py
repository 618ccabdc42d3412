"""Tensors with shapes and dtypes but without memory; operations on them compute nothing.

All uses of torch's fake tensors are in this file; tested with torch 2.13.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

_LOG = logging.getLogger("torch._subclasses.fake_tensor")


@contextmanager
def faked() -> Iterator[None]:
    """A context in which new tensors, and results of operations on others, are fake.

    For unsupported operations, an error is raised without torch's log output.
    """
    level = _LOG.level
    _LOG.setLevel(logging.CRITICAL)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            yield
    finally:
        _LOG.setLevel(level)


def really() -> AbstractContextManager[Any]:
    """A context inside :func:`faked` or a trace in which tensors are computed as usual."""
    found: AbstractContextManager[Any] = _disable_current_modes()
    return found


def is_fake(tensor: Tensor) -> bool:
    """Whether a tensor is fake."""
    return isinstance(tensor, FakeTensor)


def fake_module(module: nn.Module, device: torch.device, dtype: torch.dtype | None) -> nn.Module:
    """Returns the module with fake parameters and buffers, floating-point ones in ``dtype``.

    It is modified in place if it is on ``meta``; otherwise, it is copied. New tensors must be fake
    (:func:`faked`).
    """
    tensors = {id(t): t for t in (*module.parameters(), *module.buffers())}
    fake = {key: _fake(t, device, dtype) for key, t in tensors.items()}
    if not all(t.is_meta for t in tensors.values()):
        with really():
            module = deepcopy(module, fake)
    for part in module.modules():
        for held in (part._parameters, part._buffers):
            for name, tensor in held.items():
                if id(tensor) in fake:
                    held[name] = fake[id(tensor)]
    return module


def _fake(tensor: Tensor, device: torch.device, dtype: torch.dtype | None) -> Any:
    kept = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
    found = torch.empty_strided(tensor.shape, tensor.stride(), dtype=kept, device=device)
    if not isinstance(tensor, nn.Parameter):
        return found
    return nn.Parameter(found, tensor.requires_grad)
