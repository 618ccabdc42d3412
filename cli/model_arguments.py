"""Arguments of the commands that need a model, and PyTorch with it."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from threading import current_thread, main_thread
from typing import TYPE_CHECKING

from pipeloom.ir.errors import InputError, PipeloomError

from .arguments import count, seconds, whole
from .failures import say

if TYPE_CHECKING:
    from pipeloom.runtime.train.loop import StepRecord

TRAINING = ("steps", "dtype", "seed", "device", "pace", "callbacks", "timeout", "quiet")
"""Names of the options of :func:`add_training` beside the program and the model."""
DTYPES = ("float32", "float64", "bfloat16", "float16")
STAGES_AS = ("eager", "aten", "inductor")
BEGIN = 400
"""Bytes of a program in which it says what it is."""
TYPED = (
    "steps", "device", "pace", "clip_grad_norm", "loss_scale", "every", "eval_every",
)  # fmt: skip
"""Settings of a run whose faults name them: the option has the same name."""


def add_model(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    parser.add_argument(
        "--model",
        metavar="MODULE:ATTRIBUTE|hf:FOLDER",
        required=required,
        help="model source or a function that returns one (run the examples from the root of the "
        "checkout), or a Hugging Face model's folder or config.json, optionally with settings: "
        "hf:FOLDER,seq=512,micro_batch=4,data=FILE,seed=0,lr=1e-4,recompute=full",
    )
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        help="type of parameters and activations; by default, the model's own",
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="cpu by default")


def add_stages_as(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--stages-as",
        choices=STAGES_AS,
        default="eager",
        help="how stages run: as modules (eager, the default), or as graphs of F, B and W without "
        "autograd (aten) or compiled (inductor)",
    )


def add_training(parser: argparse.ArgumentParser) -> None:
    """The program, the model, and how long and how it is trained."""
    parser.add_argument("program", metavar="PROGRAM", help="program file, - for standard input")
    add_model(parser)
    parser.add_argument(
        "--steps", metavar="N", type=count, default=1, help="optimizer steps, 1 by default"
    )
    parser.add_argument(
        "--seed",
        metavar="N",
        type=whole,
        default=0,
        help="seed of dropout and of initial weights, 0 by default (the weights of hf: models have "
        "a seed= setting)",
    )
    parser.add_argument(
        "--pace",
        action="store_true",
        help="sleep so that each op takes at least its planned time, as if ranks that share cores "
        "had a device each",
    )
    parser.add_argument(
        "--callback",
        metavar="MODULE:ATTRIBUTE",
        action="append",
        default=[],
        dest="callbacks",
        help="function to call after each step, or class of such a callback; can be repeated",
    )
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=seconds,
        default=300.0,
        help="seconds to wait for a message, 300 by default",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print no progress")


def need_torch() -> None:
    """Raises PipeloomError where PyTorch is not installed: no file is to blame."""
    if find_spec("torch") is None:
        raise PipeloomError(
            "this command needs PyTorch: pip install 'pipeloom[runtime]' "
            "(in a checkout: pip install '.[runtime]')"
        )


def announce_loading(args: argparse.Namespace) -> None:
    """Says on a terminal that torch and the model are loaded, which takes seconds; under torchrun
    the first rank does."""
    if not args.quiet and sys.stderr.isatty() and os.environ.get("RANK", "0") == "0":
        say(f"loading torch and {args.model}")


def need_program(path: str) -> None:
    """Raises InputError, before torch takes its seconds, where there is no such file or it is of
    another kind."""
    if path == "-":
        return
    try:
        with Path(path).open("rb") as file:
            begin = file.read(BEGIN)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError:
        return  # the reader says what else is wrong
    if re.search(rb'"format":\s*"pipeloom\.(?!program")', begin):
        from pipeloom.ir.formats import load_program

        load_program(path)


@contextmanager
def interrupted(folder: str | None) -> Iterator[Callable[[StepRecord], None]]:
    """Ctrl-C, and SIGTERM where torchrun does not send it, end the run by a line that says how far
    it came; the function is told of steps."""
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
