"""Checks that a traced stage only draws random numbers by operations, which are in its graph."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from ...uncompiled import untraced
from .errors import TraceError

_SEED = 2_718_281_828
DRAWN = "its forward draws or seeds random numbers other than by operations on tensors"


@contextmanager
def undrawn(own: Iterable[torch.Generator]) -> Iterator[None]:
    """A context for traces that on exit restores the states of random generators.

    These are the generators of Python and NumPy, torch's default one and those in ``own``. Raises
    TraceError if Python's or NumPy's generator was used, or one of torch's was seeded, since a
    graph does not repeat that.
    """
    generators = [torch.default_generator, *own]
    before = random.getstate(), np.random.get_state(), [x.get_state() for x in generators]
    try:
        random.seed(_SEED)  # a seed that models hardly use themselves
        np.random.seed(_SEED)
        for generator in generators:
            generator.manual_seed(_SEED)
        started = _states(generators)
        yield
        if _states(generators) != started:
            raise TraceError(DRAWN)
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        for generator, state in zip(generators, before[2], strict=True):
            generator.set_state(state)


def _states(generators: Sequence[torch.Generator]) -> tuple[object, ...]:
    name, keys, *rest = np.random.get_state()
    with untraced():
        own = [x.get_state().numpy().tobytes() for x in generators]
    return random.getstate(), str(name), np.asarray(keys).tobytes(), *rest, own
