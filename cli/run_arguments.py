"""Options that describe a run: how a model is spread over GPUs, its batch, what it recomputes."""

from __future__ import annotations

import argparse
from typing import Any

from .arguments import at_least_one

COUNTS = {
    "gpus": "number of GPUs; by default, tp x pp x cp x dp",
    "tp": "tensor parallel degree",
    "pp": "pipeline parallel degree",
    "vp": "stages per pipeline rank",
    "dp": "data parallel degree; by default, gpus / (tp x pp x cp)",
    "cp": "context parallel degree",
    "ep": "expert parallel degree",
    "etp": "tensor parallel degree of an expert; tp by default",
    "micro_batch": "sequences per microbatch",
    "global_batch": "sequences per step",
    "seq": "tokens per sequence; by default 4096, or the model's positions if these are fewer",
    "layers": "number of decoder layers, to use fewer than the model has",
}
WORDS = {
    "layers_per_stage": "decoder layers of each stage, such as 12,14",
    "precision": "fp32, bf16 (the default), fp16, fp8, mxfp8 or nvfp4",
    "gradients": "type in which gradients are summed, such as fp32",
    "recompute": "none (the default), selective, full, or modules: core_attn,mlp,layernorm,...",
    "sharding": "none (the default), zero1, zero2 or fsdp",
    "attention": "flash or unfused; by default flash, or unfused for learned positions (GPT, OPT)",
    "schedule": "a family such as zb-h1, optimal, or a schedule file; by default 1f1b, or "
    "interleaved-1f1b with vp > 1",
}
FLAGS = {
    "sequence_parallel": "divide norms over tensor parallel ranks; the default with tp > 1",
    "fused_cross_entropy": "overwrite logits by their gradient instead of holding them in float32",
}
PLANNED = {
    "gpus": "number of GPUs",
    "dp": "data parallel degree",
    "etp": "tensor parallel degree of an expert: 1 or tp",
    "recompute": "none, selective, full, or modules: core_attn,mlp,layernorm,...; auto "
    "chooses among none, selective, full, and whole stages for some of the microbatches",
    "sharding": "none, zero1, zero2 or fsdp; by default, zero1 or fsdp is chosen",
    "schedule": "a family such as zb-h1; any schedule by default",
}
"""Of ``plan``, which chooses them, in other words."""
RUN_KEYS = (*COUNTS, *WORDS, *FLAGS)


def add_model_and_devices(parser: argparse.ArgumentParser) -> None:
    """Adds the model, and the GPU or cluster that it runs on."""
    parser.add_argument("model", metavar="MODEL", help="preset or Hugging Face config.json")
    device = parser.add_mutually_exclusive_group()
    device.add_argument("--gpu", metavar="NAME", help="GPU such as H100, in its usual cluster")
    device.add_argument("--cluster", metavar="NAME|FILE", help="preset or cluster file")


def add_run(
    parser: argparse.ArgumentParser, *without: str, planned: bool = False
) -> argparse._ArgumentGroup:
    """Adds an option for each key of a run, but for ``without``; returns their group.

    ``planned``: degrees, microbatch, recomputation, sharding, cut and schedule are chosen.
    """
    group = parser.add_argument_group("the run", "pipeloom chooses what is not given" * planned)
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
