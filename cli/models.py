"""Arguments of the commands that need a model, and PyTorch with it."""

from __future__ import annotations

import argparse
from importlib.util import find_spec

from pipeloom.ir.errors import InputError

DTYPES = ("float32", "float64", "bfloat16", "float16")


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        metavar="MODULE:ATTRIBUTE",
        required=True,
        help="a model source, or a function that returns one (the examples are in the checkout: run "
        "them from its root)",
    )
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        help="of parameters and activations; the model's own by default",
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="cpu by default")


def need_torch() -> None:
    """Raises InputError where PyTorch is not installed."""
    if find_spec("torch") is None:
        raise InputError(
            "this command needs PyTorch: pip install 'pipeloom[runtime]' "
            "(in a checkout: pip install '.[runtime]')"
        )
