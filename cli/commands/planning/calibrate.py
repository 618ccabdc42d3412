"""Fits a cluster's efficiency to measured runs: of kernels, attention, memory and links.

A file of measurements is an object whose "runs" have the keys that predict takes, "model", "gpu"
and "step_ms" (or "tokens_per_s_per_gpu"); "memory_gib" is the memory of the fullest device.
"""

from __future__ import annotations

import argparse

from ...arguments import add_output, example
from ...inputs import typed
from ...output import answer, check_output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("measurements", metavar="RUNS", help="file of measured runs")
    parser.add_argument("--gpu", metavar="NAME", help="whose runs, where there are several's")
    add_output(parser, "cluster")
    example(
        parser,
        "pipeloom calibrate runs.json -o cluster.json",
        "pipeloom predict llama-3-8b --cluster cluster.json --gpus 16 --tp 2 --pp 4",
    )


def run(args: argparse.Namespace) -> int:
    from pipeloom.planner.prediction.calibration import calibrate

    check_output(args)
    with typed("gpu"):
        found = calibrate(args.measurements, gpu=args.gpu)
    answer(args, found.to_dict(), found, found.document)
    return 0
