"""Real text that every machine has: the source files of Python's own standard library."""

from __future__ import annotations

import functools
import sysconfig
from pathlib import Path

import torch
from torch import Tensor


@functools.cache
def text() -> Tensor:
    """The modules at the top of the standard library, sorted by name, as one uint8 tensor.

    A few megabytes; the same on every run of one Python version. Raises FileNotFoundError where
    the library has no source files (a zipped or compiled-only installation).
    """
    library = Path(sysconfig.get_path("stdlib"))
    files = sorted(library.glob("*.py"), key=lambda file: file.name)
    if not files:
        raise FileNotFoundError(f"{library}: no source files of the standard library")
    joined = b"\n".join(file.read_bytes() for file in files)
    return torch.frombuffer(bytearray(joined), dtype=torch.uint8)


def windows(
    step: int, count: int, length: int, seed: int = 0, *, held_out: bool | None = None
) -> Tensor:
    """``count`` runs of ``length`` bytes for training step ``step``, shape (count, length), int64.

    Drawn anew each step from (``seed``, ``step``) alone, so that every process that asks for the
    same step gets the same bytes. ``held_out``: from the last tenth of the text, or (False) from
    what is before it.
    """
    source = text()
    if held_out is not None:
        rest = len(source) // 10
        source = source[-rest:] if held_out else source[:-rest]
    # the generator takes 32 bits of its seed, so the step is spread by an odd constant, not shifted
    generator = torch.Generator().manual_seed((seed + step * 0x9E3779B1) % 2**32)
    starts = torch.randint(len(source) - length, (count, 1), generator=generator)
    return source[starts + torch.arange(length)].long()
