"""Tokens to train on: random ones, or sequences from random positions of a file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeloom.ir.errors import InputError


@dataclass(frozen=True)
class Tokens:
    """A source of sequences of token ids, from 0 to ``vocabulary - 1``; equal in every process.

    ``data``: the file with the tokens; None: they are random. A ``.npy`` file contains integers of
    any shape, a ``.bin`` file 16-bit token ids (32-bit if ``vocabulary`` exceeds 65536); both are
    memory-mapped. Any other file is text, tokenized by ``tokenizer`` (the path of a
    ``tokenizer.json``) if that file exists; otherwise, each byte is a token. ``seed``: the seed of
    the random tokens, or of the random positions in the file.
    """

    data: str | None
    vocabulary: int
    seed: int
    tokenizer: Path

    def windows(self, step: int, rows: int, length: int) -> Tensor:
        """Returns the tokens of one step, an integer tensor (rows, length).

        Each of the ``rows`` sequences consists of random tokens, or starts at a random position of
        the file. Raises InputError if the file cannot be read, has fewer than ``length`` tokens, or
        if a token read from it is outside the vocabulary.
        """
        random = np.random.default_rng([self.seed, step])
        if self.data is None:
            return torch.from_numpy(random.integers(self.vocabulary, size=(rows, length)))
        ids = self._ids
        if len(ids) < length:
            raise InputError(f"{self.data}: expected {length} tokens (seq) or more, got {len(ids)}")
        starts = random.integers(len(ids) - length + 1, size=rows)
        found = np.stack([ids[start : start + length] for start in starts]).astype(np.int64)
        wrong = found[(found < 0) | (found >= self.vocabulary)]
        if wrong.size:
            raise InputError(
                f"{self.data}: expected tokens from 0 to {self.vocabulary - 1}, the model's "
                f"vocabulary, got {wrong[0]}"
            )
        return torch.from_numpy(found)

    @cached_property
    def _ids(self) -> Any:
        """The file's tokens, a 1-D array of integers. Raises InputError if it cannot be read."""
        path = Path(str(self.data)).expanduser()
        try:
            if path.suffix == ".npy":
                found = np.load(path, mmap_mode="r")
                if found.dtype.kind not in "iu":
                    raise InputError(f"{path}: expected whole numbers, got {found.dtype}")
                return found.reshape(-1)
            if path.suffix == ".bin":
                wide = self.vocabulary > 1 << 16
                return np.memmap(path, dtype=np.uint32 if wide else np.uint16, mode="r")
            if not self.tokenizer.is_file():
                return np.memmap(path, dtype=np.uint8, mode="r")
            read = import_module("tokenizers").Tokenizer.from_file(str(self.tokenizer))
            return np.array(read.encode(path.read_text(encoding="utf-8")).ids)
        except (OSError, ValueError) as error:
            words = getattr(error, "strerror", None) or error
            raise InputError(f"{path}: expected a file of tokens: {words}") from None
