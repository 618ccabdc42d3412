"""A model's arithmetic: parameters, FLOPs, bytes held and moved by layer, devices and links.

MODEL is a preset's name (llama-2-70b, mixtral-8x7b, ...), a Hugging Face config.json or its folder,
or a file in Megatron's words.
"""

from __future__ import annotations

import argparse

from ...argument_types import amount, limit
from ...arguments import example
from ...inputs import typed
from ...output import answer
from ...run_arguments import RUN_KEYS, add_run, run_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a preset's name, or a file")
    parser.add_argument(
        "--device-memory",
        metavar="BYTES",
        type=limit,
        default=80e9,
        help="of a device, 80G by default",
    )
    parser.add_argument(
        "--teraflops",
        metavar="X",
        type=amount,
        default=312.0,
        help="that a device computes at, for what links have to carry beside it; 312 by default, "
        "an A100's peak",
    )
    add_run(parser, "schedule")
    example(
        parser,
        "pipeloom arithmetic llama-2-70b --micro-batch 8",
        "pipeloom arithmetic config.json --gpus 64 --tp 8 --pp 4 --recompute selective",
        "pipeloom arithmetic deepseek-v3 --ep 64 --pp 8 --gpus 512 --precision fp8 --json",
    )


def run(args: argparse.Namespace) -> int:
    from pipeloom.planner.models.arithmetic import arithmetic

    with typed(*RUN_KEYS, "device_memory", "teraflops"):
        found = arithmetic(
            args.model,
            device_memory=float(args.device_memory),
            teraflops=args.teraflops,
            **run_options(args),
        )
    answer(args, found.to_dict(), found)
    return 0
