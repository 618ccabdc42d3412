"""Random numbers while a stage is traced: draws are calls of its graph, and nothing else may be."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from ...fake_tensors import really
from .errors import TraceError

_SEED = 2_718_281_828
DRAWN = "its forward draws or seeds random numbers other than by operations on tensors"
TRACING: list[bool] = []  # not empty while torch traces


@contextmanager
def undrawn() -> Iterator[None]:
    """A context after which generators of random numbers are as before.

    Raises TraceError where one was used or seeded: a graph would have drawn once, for all.
    """
    before = random.getstate(), np.random.get_state()
    try:
        for seed in (random.seed, np.random.seed):
            seed(_SEED)  # other than any that a model would set again
        started = _generators()
        yield
        if _generators() != started:
            raise TraceError(DRAWN)
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


@contextmanager
def unseeded(own: Iterable[torch.Generator]) -> Iterator[None]:
    """A context after which torch's generators, and a stage's ``own``, are as before.

    Raises TraceError where one was seeded or set to a state: draws alone are calls of the graph.
    """
    generators = [*own, torch.default_generator]
    before = [generator.get_state() for generator in generators]
    try:
        started = [generator.manual_seed(_SEED).get_state() for generator in generators]
        yield
        with really():
            pairs = zip(generators, started, strict=True)
            same = all(generator.get_state().equal(state) for generator, state in pairs)
        if not same:
            raise TraceError(DRAWN)
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)


def _generators() -> tuple[object, ...]:
    name, keys, *rest = np.random.get_state()
    return random.getstate(), str(name), np.asarray(keys).tobytes(), *rest


def _seeded(own: Callable[..., Any]) -> Callable[..., Any]:
    def seed(*arguments: Any, **named: Any) -> Any:
        if TRACING:
            raise TraceError(DRAWN)
        return own(*arguments, **named)

    return seed


_SEEDING = {
    torch: ("manual_seed", "seed", "set_rng_state"),
    torch.random: ("manual_seed", "seed", "set_rng_state"),
    torch.cuda: ("manual_seed", "manual_seed_all", "set_rng_state", "set_rng_state_all"),
}
SEEDS: list[tuple[Any, str, Any]] = [
    (p, name, _seeded(getattr(p, name))) for p, names in _SEEDING.items() for name in names
]
"""What seeds torch's generators, and what is put in its place."""
