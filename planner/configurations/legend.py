"""A legend of the words in a table of plans: only those that it has."""

from __future__ import annotations

import re
from collections.abc import Iterable

NAMES = {
    "tp": "tensor parallel degree",
    "pp": "pipeline parallel degree",
    "dp": "data parallel degree",
    "cp": "context parallel degree",
    "ep": "expert parallel degree",
    "etp": "tensor parallel degree of an expert",
    "vp": "stages per rank",
    "b": "sequences per microbatch",
    "selective": "attention is recomputed in the backward",
    "full": "layers are recomputed in the backward",
    "auto": "stages are recomputed for some microbatches",
    "offload": "activations are offloaded to the host for some microbatches",
    "weights": "ranks send weights, not activations",
    "zero1": "optimizer states sharded over replicas",
    "zero2": "gradients and optimizer states sharded over replicas",
    "fsdp": "weights, gradients and optimizer states sharded over replicas",
    "cut": "fewer layers in the stages with embedding and head",
    "v": "stages go down the ranks and back up",
    "B/W": "B and W are separate ops",
}
"""Words of plans' names."""
PARTS = {
    "compute": "kernels of the busiest rank",
    "tp": "tensor parallel communication",
    "cp": "context parallel communication",
    "ep": "expert parallel communication",
    "etp": "tensor parallel communication of experts",
    "bubble": "idle time",
    "dp": "exposed averaging of gradients",
    "step": "the optimizer and the host",
}
"""Parts of a step, in which plans are slower than the best one."""


def legend(names: Iterable[str], reasons: Iterable[str | None]) -> list[str]:
    """One line on the words of these plans' ``names``, one on the parts that ``reasons`` name."""
    found = {word for name in names for word in name.split()}
    words = {word if word in NAMES else re.sub(r"\d+$", "", word) for word in found}
    parts = {reason.split()[0] for reason in reasons if reason}
    lines = []
    slower = "last column, which parts of the step take longer"
    for what, known, seen in (("plan", NAMES, words), (slower, PARTS, parts)):
        meanings = [f"{key} = {meaning}" for key, meaning in known.items() if key in seen]
        lines += [f"{what}: {'; '.join(meanings)}"] if meanings else []
    return lines
