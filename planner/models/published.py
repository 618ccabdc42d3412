"""Formulas as they were published, beside which the sums over layers stand.

``s`` positions, ``b`` sequences a microbatch, ``h`` hidden width, ``a`` heads, ``l`` layers, ``v``
words, ``t`` tensor parallel ranks.
"""

from __future__ import annotations

ADAM_BYTES = {"weights": 2, "gradients": 2, "optimizer": 12}
"""A parameter's, with Adam in mixed precision (Rajbhandari et al., 2020, section 3.1)."""


def layer_activation_bytes(
    s: int,
    b: int,
    h: int,
    a: int,
    *,
    t: int = 1,
    sequence_parallel: bool = False,
    recompute: str = "none",
) -> float:
    """Activations of one layer of a GPT with dropout (Korthikanti et al., 2022, equations 1 to 5,
    table 2).

    ``none``: s b h (34 + 5 a s / h); ``selective``, or flash attention: without the second term;
    ``full``: 2 s b h. Divided over t ranks: with sequence parallelism all of it, else all but 10
    s b h.
    """
    pairs = 5 * a * s / h if recompute == "none" else 0.0
    if recompute == "full":
        return 2.0 * s * b * h / (t if sequence_parallel else 1)
    if sequence_parallel:
        return s * b * h * (34 + pairs) / t
    return s * b * h * (10 + (24 + pairs) / t)
