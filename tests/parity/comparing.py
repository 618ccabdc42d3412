"""Compares the results of all ranks with those of one process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import isfinite, isnan
from typing import Any

from torch import Tensor

from .cases import Case
from .plain import Found

BOUNDS = {"float64": 1e-9, "float32": 3e-4, "bfloat16": 0.15}
"""Relative tolerance, by the least precise dtype in which a case computes or sends."""
SMALL = {"outputs": 1.0}  # absolute tolerance in bfloat16, as they are sums of about 50 numbers


def compared(case: Case, rows: Sequence[Found], wanted: Found) -> Iterator[str]:
    """Yield a line for each kind of result that differs."""
    dtypes = (
        "float32" if case.hugging else case["dtype"],
        case["param_dtype"],
        case["reduce_dtype"],
    )
    bound = max(BOUNDS[dtype] for dtype in dtypes if dtype)
    least = 0.1 if bound == BOUNDS["bfloat16"] else 0.01
    for kind in ("losses", "evaluated", "outputs"):
        pairs = [pair for row in rows for pair in getattr(row, kind).items()]
        small = SMALL.get(kind, least) if bound == BOUNDS["bfloat16"] else least
        yield from _told(kind, pairs, getattr(wanted, kind), partial(_apart, bound, small))
    for kind in ("gradients", "parameters"):
        expected = getattr(wanted, kind)
        largest = [float(x.abs().max()) for x in expected.values() if x is not None]
        most = max(largest, default=0.0)
        pairs = [pair for row in rows for pair in getattr(row, kind).items()]
        yield from _told(kind, pairs, expected, partial(_unlike, case, bound, most))
    for row in (row for row in rows if row.parameters or not case["ahead"]):
        if row.scale != wanted.scale:
            yield f"loss scale {row.scale}, not {wanted.scale}"
        if (_norm(row) is None) != (_norm(wanted) is None) or _apart(
            bound, least, _norm(row) or 0.0, _norm(wanted) or 0.0
        ):
            yield f"norm {row.norm}, not {wanted.norm}"
            return


def _told(
    kind: str, pairs: Sequence[tuple[Any, Any]], expected: Any, differs: Any
) -> Iterator[str]:
    if odd := dict(pairs).keys() ^ expected.keys():
        yield f"{kind}: {sorted(odd)} not in both"
    known = [(key, value) for key, value in pairs if key in expected]
    wrong = {key: why for key, value in known if (why := differs(value, expected[key]))}
    for key, why in [*wrong.items()][:1]:
        yield f"{kind}: {key}: {why}; {len(wrong)} of {len(expected)} so"


def _norm(found: Found) -> float | None:
    """The gradient norm; None if there is none or it is not finite."""
    return found.norm if found.norm is not None and isfinite(found.norm) else None


def _apart(bound: float, small: float, found: float, wanted: float) -> str:
    alike = found == wanted or (isnan(found) and isnan(wanted))
    alike = alike or abs(found - wanted) <= bound * (abs(wanted) + small)
    return "" if alike else f"{found} not {wanted}"


def _unlike(
    case: Case, bound: float, most: float, found: Tensor | None, wanted: Tensor | None
) -> str:
    if found is None or wanted is None:
        zero = case.sharded and found is not None and not found.any()
        return "" if found is wanted or zero else f"{found} not {wanted}"
    if not wanted.square().isfinite().all():
        return "" if not found.square().isfinite().all() else "finite"
    apart = float((found - wanted).abs().max()) / (float(wanted.abs().max()) + 1e-2 * most + 1e-30)
    return "" if apart <= bound else f"apart by {apart:.2g}"
