"""Random numbers drawn twice: what dropout left out in a forward, it leaves out when that runs
again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..device import Device
from .trees import tensors

CPU = torch.device("cpu")


class RandomState:
    """The states, now, of the generators that a computation on ``devices`` draws from, and of its
    ``own``."""

    def __init__(
        self, devices: Iterable[torch.device], own: Iterable[torch.Generator] = ()
    ) -> None:
        accelerators = {x for x in devices if x.type not in ("cpu", "meta")}
        self._default = [(d, d.rng_state()) for d in map(Device, (CPU, *accelerators))]
        self._own = [(generator, generator.get_state()) for generator in own]

    def restore(self) -> None:
        """Makes the same numbers come again."""
        for device, state in self._default:
            device.set_rng_state(state)
        for generator, state in self._own:
            generator.set_state(state)

    @contextmanager
    def again(self) -> Iterator[None]:
        """A context that draws the same numbers once more; after it all goes on as if none had been
        drawn."""
        devices = [device.device for device, _ in self._default]
        after = RandomState(devices, [generator for generator, _ in self._own])
        self.restore()
        try:
            yield
        finally:
            after.restore()


def generators_of(module: nn.Module) -> list[torch.Generator]:
    """The generators of random numbers that modules have as attributes."""
    held = (vars(part).values() for part in module.modules())
    return [x for values in held for x in values if isinstance(x, torch.Generator)]


def devices_of(values: Iterable[Any]) -> set[torch.device]:
    """The devices of the tensors among ``values``."""
    return {x.device for x in tensors(values)}
