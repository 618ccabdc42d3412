"""Predicts a step of a known configuration: its time, memory and messages, before anything runs.

The model's arithmetic and the cluster's calibrated rates give each stage's times, of which the real
schedule is simulated.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from ..arguments import add_output, at_least_one, example
from ..inputs import typed
from ..output import answer, check_output, finish

COUNTS = {
    "gpus": "GPUs in all: tp x pp x dp x cp",
    "tp": "tensor parallel ranks",
    "pp": "ranks of the pipeline",
    "vp": "stages a rank",
    "dp": "replicas; what is left of the GPUs by default",
    "cp": "context parallel ranks, which share out a sequence",
    "ep": "expert parallel ranks",
    "micro-batch": "sequences of a microbatch",
    "global-batch": "sequences of a step",
    "seq": "tokens of a sequence",
    "layers": "decoder layers, where there are fewer than the model's",
}
WORDS = {
    "precision": "bf16 (the default), fp16, fp32, fp8, mxfp8 or nvfp4",
    "recompute": "none (the default), selective, full, or modules",
    "sharding": "none (the default), zero1, zero2 or fsdp",
    "layers-per-stage": "decoder layers of each stage, such as 19,20,20,21",
    "schedule": "a family, such as zb-h1, or optimal; 1f1b or interleaved-1f1b by default",
    "attention": "flash or unfused",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", help="a preset's name, or a config.json of Hugging Face"
    )
    parser.add_argument("--gpu", metavar="NAME", help="such as H100: its usual cluster")
    parser.add_argument("--cluster", metavar="NAME|FILE", help="a preset's name, or a cluster file")
    parser.add_argument(
        "--measured",
        metavar="PROFILE",
        help="a profile by layers, whose times take the place of calculated ones",
    )
    for name, words in COUNTS.items():
        parser.add_argument(f"--{name}", metavar="N", type=at_least_one, help=words)
    for name, words in WORDS.items():
        parser.add_argument(f"--{name}", metavar="WORD", help=words)
    parser.add_argument(
        "--run",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        type=_pair,
        help="any other key of a run, such as sequence_parallel=false",
    )
    add_output(parser, "pipeline profile")
    example(
        parser,
        "pipeloom predict llama-3-70b --gpu H100 --gpus 64 --tp 8 --pp 4 --global-batch 128",
        "pipeloom predict config.json --cluster cluster.json --gpus 16 --pp 8 -o profile.json",
    )


def run(args: argparse.Namespace) -> int:
    from pipeloom.planner.predict import predict

    check_output(args)
    names = [name.replace("-", "_") for name in (*COUNTS, *WORDS, "gpu")]
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    with typed(*names, "cluster", "measured", *dict(args.run)):
        found = predict(
            args.model, cluster=args.cluster, measured=args.measured, **given | dict(args.run)
        )
    facts = found.to_dict()
    if args.output is None:
        answer(args, facts, found)
    else:
        finish(args, facts["profile"], facts, str(found))
    return 0


def _pair(text: str) -> tuple[str, Any]:
    """``sequence_parallel=false``: a value of JSON, else a word."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, got {text!r}")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value
