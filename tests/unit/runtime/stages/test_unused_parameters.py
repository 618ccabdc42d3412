"""What has no gradient, told of gradients that are conjugates by a bit alone, too."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pipeloom.runtime.stages.unused_parameters import NOTHING, clear_unused


@pytest.mark.parametrize("value", [complex(NOTHING, 0.0), complex(1.0, NOTHING)])
def test_a_conjugate_is_a_gradient_unless_nothing_was_added(value: complex) -> None:
    parameter = nn.Parameter(torch.ones(3, dtype=torch.complex128))
    parameter.grad = torch.full((3,), value, dtype=torch.complex128).conj()
    assert parameter.grad.is_conj()
    clear_unused([parameter])
    assert (parameter.grad is None) == (value == 0)
