"""Saves and restores random states, so that dropout is the same in a repeated forward."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..device import Device
from .trees import tensors

CPU = torch.device("cpu")


class RandomState:
    """A copy of the current states of random generators.

    It covers the default generators of the CPU and of ``devices``, and the generators ``own``.
    """

    def __init__(
        self, devices: Iterable[torch.device], own: Iterable[torch.Generator] = ()
    ) -> None:
        accelerators = {x for x in devices if x.type not in ("cpu", "meta")}
        default = [Device(device).generator() for device in (CPU, *accelerators)]
        self._states = _states([*default, *own])

    def restore(self) -> None:
        """Sets the generators to the copied states."""
        for generator, state in self._states:
            generator.set_state(state)

    @contextmanager
    def again(self) -> Iterator[None]:
        """A context in which generators start from the copied states.

        On exit, sets them to their states from before the context.
        """
        after = _states(generator for generator, _ in self._states)
        self.restore()
        try:
            yield
        finally:
            for generator, state in after:
                generator.set_state(state)


def _states(generators: Iterable[torch.Generator]) -> list[tuple[torch.Generator, Tensor]]:
    return [(generator, generator.get_state()) for generator in generators]


def generators_of(module: nn.Module) -> list[torch.Generator]:
    """Returns the random generators that are attributes of the module or of a submodule."""
    held = (vars(part).values() for part in module.modules())
    return [x for values in held for x in values if isinstance(x, torch.Generator)]


def devices_of(values: Iterable[Any]) -> set[torch.device]:
    """Returns the devices of the tensors among ``values``."""
    return {x.device for x in tensors(values)}
