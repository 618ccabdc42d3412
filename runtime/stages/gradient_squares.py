"""The sum of the squares of gradients, on this process and over a group of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..dtensors import local
from ..transport import ReplicaFaults, wait_for


@torch.no_grad()
def squares(gradients: Sequence[Tensor]) -> float:
    """The sum of the squares of all elements; one wait for the device."""
    if not gradients:
        return 0.0
    wide = [torch.float32 if g.dtype.itemsize < 4 else g.dtype for g in gradients]
    pairs = zip(gradients, wide, strict=True)
    norms = [torch.linalg.vector_norm(g, dtype=dtype).double() for g, dtype in pairs]
    return float(torch.stack(norms).square().sum())


def squares_of(parameters: Sequence[nn.Parameter]) -> float:
    """The sum of squares of the parameters' gradients, of DTensors over the part that is here."""
    return squares([local(p.grad) for p in parameters if p.grad is not None])


def summed(
    values: Sequence[float],
    group: dist.ProcessGroup,
    device: torch.device,
    timeout: timedelta,
    what: str,
    *,
    faults: ReplicaFaults | None = None,
) -> list[float]:
    """The sums of the ``values`` of all processes of ``group``, the same bits on all; the host
    waits.

    Raises ConnectionError where that takes longer on a CPU, saying of ``what``,
    or a fault is found.
    """
    total = torch.tensor(values, dtype=torch.float64, device=device)
    work = dist.all_reduce(total, group=group, async_op=True)
    assert work is not None
    if device.type == "cpu":
        wait_for(work, timeout, what, faults)
    else:
        work.wait()
    found: list[float] = total.tolist()
    return found
