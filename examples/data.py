"""Training text that every machine has: the source files of Python's standard library."""

from __future__ import annotations

import functools
import sysconfig
from pathlib import Path

import torch
from torch import Tensor


@functools.cache
def text() -> Tensor:
    """The top-level modules of Python's standard library, sorted by name and joined into one uint8
    tensor.

    Its shape is (bytes,), with a few million bytes. It is the same on every run with the same
    version of Python. Raises FileNotFoundError if the library has no source files (a zipped or
    compiled-only installation).
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
    """Random windows of the text for training step ``step``: shape (count, length), int64.

    They depend only on the arguments, so all processes that ask for the same step get the same
    bytes. ``held_out``: True for windows from the last tenth of the text, False for windows from
    the rest, None for windows from anywhere.
    """
    source = text()
    if held_out is not None:
        rest = len(source) // 10
        source = source[-rest:] if held_out else source[:-rest]
    # a seed has 32 bits, and an odd factor spreads the step over all of them
    generator = torch.Generator().manual_seed((seed + step * 0x9E3779B1) % 2**32)
    starts = torch.randint(len(source) - length, (count, 1), generator=generator)
    return source[starts + torch.arange(length)].long()
