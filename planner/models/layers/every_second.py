"""``selective`` recomputation as in torchtitan: the outputs of every second matrix product are
kept.

torchtitan's policy for single ops keeps the layer's input, the output of attention, and the outputs
of every other matrix product; all else is recomputed before B. As an average over products, this
module keeps half of the output of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pipeloom.ir.model.ops import OpKind

from ..work import Attention, Gemm, Held, LayerWork

KEPT = frozenset({"attention norm input", "attention output", "attention row sums"})
OUTPUTS = frozenset({"q", "k", "v", "activation input"})
"""Held tensors that are outputs of matrix products.

A layer has two more products, whose outputs are added to the residual stream. They are not in this
set: :func:`keep_every_second` holds half of them as a separate tensor.
"""


def keep_every_second(work: LayerWork) -> LayerWork:
    """A copy of ``work`` with recomputation by this policy, which replaces any other
    recomputation."""
    forward = [*work.of(OpKind.F)]
    later = [kernel for kernel in work.kernels if kernel.op in (OpKind.B, OpKind.W)]
    again = [replace(k, op=OpKind.R) for k in forward if not isinstance(k, Attention)]
    again = [replace(k, count=k.count / 2) if isinstance(k, Gemm) else k for k in again]
    held = [part for tensor in work.held for part in _parts(tensor)]
    held.append(Held("half of the products' sums", work.message_bytes, OpKind.B))
    return replace(work, kernels=(*forward, *again, *later), held=tuple(held))


def _parts(tensor: Held) -> Iterator[Held]:
    if tensor.made is not OpKind.F or tensor.name in KEPT:
        yield replace(tensor, dropped=False)
    elif tensor.name in OUTPUTS:
        yield replace(tensor, bytes=tensor.bytes / 2, dropped=False)
        yield replace(tensor, bytes=tensor.bytes / 2, dropped=True)
    else:
        yield replace(tensor, dropped=True)
