"""Options that describe a run: how a model is spread over GPUs, its batch, what it recomputes."""

from __future__ import annotations

import argparse
from typing import Any

from .arguments import at_least_one

COUNTS = {
    "gpus": "GPUs; tp x pp x cp x dp by default",
    "tp": "tensor parallel ranks",
    "pp": "pipeline ranks",
    "vp": "stages of a pipeline rank",
    "dp": "data parallel replicas; what is left of the GPUs by default",
    "cp": "context parallel ranks",
    "ep": "expert parallel ranks",
    "etp": "tensor parallel ranks of an expert; tp by default",
    "micro_batch": "sequences of a microbatch",
    "global_batch": "sequences of a step",
    "seq": "tokens of a sequence; 4096 by default, or the model's positions where fewer",
    "layers": "decoder layers, where fewer than the model's",
}
WORDS = {
    "layers_per_stage": "decoder layers of each stage: 12,14",
    "precision": "fp32, bf16 (the default), fp16, fp8, mxfp8 or nvfp4",
    "gradients": "what gradients are summed in",
    "recompute": "none (the default), selective, full, or modules: core_attn,mlp,layernorm,...",
    "sharding": "none (the default), zero1, zero2 or fsdp",
    "attention": "flash or unfused; by default flash, but unfused for learned positions (GPT, OPT)",
    "schedule": "a family, such as zb-h1, optimal, or a schedule's file; 1f1b or interleaved-1f1b "
    "by default",
}
FLAGS = {
    "sequence_parallel": "norms divided over tensor parallel ranks; with tp > 1 the default",
    "fused_cross_entropy": "logits overwritten by their gradient, not held in float32",
}
PLANNED = {
    "gpus": "GPUs",
    "dp": "data parallel replicas",
    "etp": "tensor parallel ranks of an expert: 1, or as many as tp",
    "recompute": "none, selective, full, or modules: core_attn,mlp,layernorm,...; auto: beside "
    "none, selective and full also whole stages, for the microbatches that it pays for",
    "sharding": "none, zero1, zero2 or fsdp; zero1 or fsdp is chosen",
    "schedule": "a family, such as zb-h1; any schedule by default",
}
"""Of ``plan``, which chooses them, in other words."""
RUN_KEYS = (*COUNTS, *WORDS, *FLAGS)


def add_model_and_devices(parser: argparse.ArgumentParser) -> None:
    """Adds the model, and the GPU or cluster that it runs on."""
    parser.add_argument(
        "model", metavar="MODEL", help="a preset's name, or a config.json of Hugging Face"
    )
    device = parser.add_mutually_exclusive_group()
    device.add_argument("--gpu", metavar="NAME", help="such as H100: its usual cluster")
    device.add_argument("--cluster", metavar="NAME|FILE", help="a preset's name, or a cluster file")


def add_run(
    parser: argparse.ArgumentParser, *without: str, planned: bool = False
) -> argparse._ArgumentGroup:
    """Adds an option for each key of a run, but for ``without``; returns their group.

    ``planned``: degrees, microbatch, recomputation, sharding, cut and schedule are chosen.
    """
    group = parser.add_argument_group("the run", "what is given is not chosen" * planned)
    for key, words in {**COUNTS, **WORDS, **FLAGS, **(PLANNED if planned else {})}.items():
        if key in without:
            continue
        name = f"--{key.replace('_', '-')}"
        if key in FLAGS:
            flag = argparse.BooleanOptionalAction
            group.add_argument(name, action=flag, default=None, help=words)
        else:
            shown, kind = ("N", at_least_one) if key in COUNTS else ("WORD", str)
            group.add_argument(name, metavar=shown, type=kind, help=words)
    return group


def run_options(args: argparse.Namespace) -> dict[str, Any]:
    """The keys that were given."""
    found = {key: getattr(args, key, None) for key in RUN_KEYS}
    return {key: value for key, value in found.items() if value is not None}
