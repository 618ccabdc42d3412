"""Profiles of decoder-only models by calculation, with the levels at which a block is recomputed.

A block holds, of each of its G S tokens, its input (H numbers) and what its steps make, from F to
B. What a step made may be dropped and made again, from what is kept or was made again before:

| step | makes | its time |
| --- | --- | --- |
| first norm | H | reads and writes |
| q, k, v | H + 2 K | 2 H (H + 2 K) operations a token |
| attention | H | 2 S H, the half of 4 S H that is causal |
| second residual | H | 2 H H |
| second norm | H | reads and writes |
| gate and up | 2 I | 4 H I |
| activation | I | reads and writes |

Levels drop the steps that only read and write; then gate and up as well; then q, k, v and the
second residual; then attention, so that the input alone is left.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeloom.ir.model.profile import WHOLE, Level, Profile, StageProfile

BYTES = 2.0  # a number
TERAFLOPS, GIGABYTES_PER_SECOND = 400.0, 2000.0
LINK = 50.0  # gigabytes a second, 0.02 ms before the first byte
MILLISECONDS = 1e3


@dataclass(frozen=True, slots=True)
class Model:
    """``layers`` dealt out over ``ranks``; K: ``kv``, I: ``inner``; G: ``microbatch``."""

    name: str
    layers: int
    hidden: int
    kv: int
    inner: int
    vocabulary: int
    sequence: int
    ranks: int
    microbatch: int = 1

    @property
    def tokens(self) -> int:
        return self.microbatch * self.sequence


MODELS = (
    Model("Llama 3 8B", 32, 4096, 1024, 14336, 128256, 8192, 4),
    Model("Llama 2 13B", 40, 5120, 5120, 13824, 32000, 4096, 4),
    Model("Qwen 2.5 1.5B", 28, 1536, 256, 8960, 151936, 32768, 4),
    Model("Llama 3 70B", 80, 8192, 1024, 28672, 128256, 8192, 8),
)


def profile(model: Model) -> Profile:
    """One stage a rank: layers dealt out evenly, one fewer on the last, which has the head."""
    each, more = divmod(model.layers + 1, model.ranks)
    counts = [each + (rank < more) for rank in range(model.ranks)]
    counts[-1] -= 1
    stages = [_stage(model, count, rank == model.ranks - 1) for rank, count in enumerate(counts)]
    sent = BYTES * model.tokens * model.hidden / (LINK * 1e9) * MILLISECONDS
    return Profile(tuple(stages), model.ranks, t_comm=0.02 + sent, name=model.name)


def _stage(model: Model, layers: int, head: bool) -> StageProfile:
    """The stage's times and sizes. B of attention takes two and a half times F (its forward again
    included), B and W of a matrix as long as F."""
    h, made, times = model.hidden, _made(model), _times(model)
    matrices = sum(times[step] for step in ("qkv", "residual", "gate")) + _matrix(
        model, model.inner
    )
    rest = times["norms"] + times["activation"]
    ends = _matrix(model, model.vocabulary) if head else 0.0
    m_b = layers * _bytes(model, h + sum(made.values()))
    return StageProfile(
        t_f=layers * (matrices + times["attention"] + rest) + ends,
        t_b=layers * (matrices + 2.5 * times["attention"] + 2 * rest) + ends,
        t_w=layers * matrices + ends,
        m_b=m_b,
        m_w=m_b,  # inputs of matrices and gradients of their outputs are as many
        levels=tuple(_levels(model, layers)),
    )


def _levels(model: Model, layers: int) -> list[Level]:
    made, times = _made(model), _times(model)
    dropped = (("norms", "activation"), ("gate",), ("qkv", "residual"), ("attention",))
    names = "elementwise", "mlp", "matrices", WHOLE
    levels, time, kept = [], 0.0, model.hidden + sum(made.values())
    for name, steps in zip(names, dropped, strict=True):
        time += sum(times[step] for step in steps)
        kept -= sum(made[step] for step in steps)
        levels.append(Level(name, layers * time, layers * _bytes(model, kept)))
    return levels


def _made(model: Model) -> dict[str, int]:
    """Numbers a token that steps make, both norms together."""
    h, k, i = model.hidden, model.kv, model.inner
    made = {"norms": 2 * h, "qkv": h + 2 * k, "attention": h, "residual": h, "gate": 2 * i}
    return made | {"activation": i}


def _times(model: Model) -> dict[str, float]:
    """Milliseconds of a layer's steps, the last matrix apart."""
    h, k, i = model.hidden, model.kv, model.inner
    return {
        "norms": _touched(model, 2 * 2 * h),
        "qkv": _matrix(model, h + 2 * k),
        "attention": 2.0 * model.tokens * model.sequence * h / (TERAFLOPS * 1e12) * MILLISECONDS,
        "residual": _matrix(model, h),
        "gate": _matrix(model, 2 * i),
        "activation": _touched(model, 3 * i),
    }


def _matrix(model: Model, width: int) -> float:
    """Milliseconds of a product between H and ``width``."""
    return 2.0 * model.tokens * model.hidden * width / (TERAFLOPS * 1e12) * MILLISECONDS


def _touched(model: Model, numbers: float) -> float:
    """Milliseconds to read and write so many numbers a token."""
    return _bytes(model, numbers) / (GIGABYTES_PER_SECOND * 1e9) * MILLISECONDS


def _bytes(model: Model, numbers: float) -> float:
    return BYTES * model.tokens * numbers
