"""Arguments of the commands that need a model, and therefore PyTorch."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from threading import current_thread, main_thread
from typing import TYPE_CHECKING

from pipeloom.ir.errors import InputError, PipeloomError
from pipeloom.planner.requests.fields import option
from pipeloom.planner.requests.kinds import choice

from .arguments import Quiet
from .failures import say

if TYPE_CHECKING:
    from pipeloom.runtime.train.loop import StepRecord

BEGIN = 400
"""The number of bytes at the beginning of a program file in which its format is looked for."""
DTYPE = choice("float32", "float64", "bfloat16", "float16")


@dataclass(frozen=True, kw_only=True)
class ModelRequest(Quiet):
    """The model source of a command, and options on how its stages run."""

    model: str | None = option("MODULE:ATTRIBUTE|hf:FOLDER")
    """model source or a function that returns one (run the examples from the root of the checkout),
    or a Hugging Face model's folder or config.json, optionally with settings:
    hf:FOLDER,seq=512,micro_batch=4,data=FILE,seed=0,lr=1e-4,recompute=full"""
    dtype: str | None = option(kind=DTYPE)
    """type of parameters and activations; by default, the model's own"""
    device: str = option(kind=choice("cpu", "cuda"), default="cpu")
    """device of all ranks, cpu by default"""
    stages_as: str = option(kind=choice("eager", "aten", "inductor"), default="eager")
    """how stages run: as modules (eager, the default), or as graphs of F, B and W without autograd
    (aten) or compiled (inductor)"""

    def load_torch(self) -> None:
        """Print to a terminal that torch and the model are being loaded. Does not import torch.

        Under torchrun, only rank 0 prints it. Raises PipeloomError if PyTorch is not installed.
        """
        need_torch()
        if not self.quiet and sys.stderr.isatty() and os.environ.get("RANK", "0") == "0":
            say(f"loading torch and {self.model}")


def need_torch() -> None:
    """Raise PipeloomError if PyTorch is not installed."""
    if find_spec("torch") is None:
        raise PipeloomError(
            "this command needs PyTorch: pip install 'pipeloom[runtime]' "
            "(in a checkout: pip install '.[runtime]')"
        )


def need_program(path: str) -> None:
    """Raise InputError if the file does not exist, or is a file of pipeloom but not a program.

    It is called before torch is loaded. Other faults of the file are found when it is read.
    """
    if path == "-":
        return
    try:
        with Path(path).open("rb") as file:
            begin = file.read(BEGIN)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError:
        return  # reported when the file is read
    if re.search(rb'"format":\s*"pipeloom\.(?!program")', begin):
        from pipeloom.ir.formats import load_program

        load_program(path)


@contextmanager
def interrupted(folder: str | None) -> Iterator[Callable[[StepRecord], None]]:
    """A context in which Ctrl-C ends the run with a message about the last finished step.

    SIGTERM does the same, except under torchrun. Yields a function that must be called with the
    record of each step. ``folder``: the folder of checkpoints, or None; the message names the last
    checkpoint.
    """
    done: list[int] = []
    alone = "RANK" not in os.environ and current_thread() is main_thread()
    before = signal.signal(signal.SIGTERM, signal.default_int_handler) if alone else None
    try:
        yield lambda record: done.append(record.step + 1)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_so_far(done, folder)) from None
    finally:
        if alone:
            signal.signal(signal.SIGTERM, before)


def _so_far(done: Sequence[int], folder: str | None) -> str:
    from pipeloom.runtime.train.checkpoint_reader import latest

    where = f" after step {done[-1]}" if done else " before the first step was done"
    try:
        return f"{where}; {latest(folder)} is the last checkpoint" if folder else where
    except InputError:
        return f"{where}; no checkpoint was written"
