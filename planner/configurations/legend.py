"""A legend of the words in a table of plans: only those that it has."""

from __future__ import annotations

import re
from collections.abc import Iterable

NAMES = {
    "tp": "tensor parallel ranks",
    "pp": "pipeline ranks",
    "dp": "replicas",
    "cp": "context parallel ranks",
    "ep": "expert parallel ranks",
    "etp": "tensor parallel ranks of an expert",
    "vp": "stages of a rank",
    "b": "sequences in a microbatch",
    "selective": "attention is computed again in the backward",
    "full": "layers are computed again in the backward",
    "auto": "stages are computed again for some microbatches",
    "offload": "stages are moved to the host and back for some microbatches",
    "weights": "ranks send weights, not activations",
    "zero1": "optimizer states divided over replicas",
    "zero2": "gradients and optimizer states divided over replicas",
    "fsdp": "weights, gradients and optimizer states divided over replicas",
    "cut": "fewer layers beside embedding and head",
    "v": "stages go down the ranks and back up",
    "B/W": "B and W are ops of their own",
}
"""Words of plans' names."""
PARTS = {
    "compute": "kernels of the busiest rank",
    "tp": "its tensor parallel messages",
    "cp": "its context parallel messages",
    "ep": "its expert parallel messages",
    "etp": "its tensor parallel messages of experts",
    "bubble": "its idle time",
    "dp": "averaging that nothing hides",
    "step": "the optimizer and the host",
}
"""Parts of a step, in which plans are slower than the best one."""


def legend(names: Iterable[str], reasons: Iterable[str | None]) -> list[str]:
    """One line on the words of these plans' ``names``, one on the parts that ``reasons`` name."""
    found = {word for name in names for word in name.split()}
    words = {word if word in NAMES else re.sub(r"\d+$", "", word) for word in found}
    parts = {reason.split()[0] for reason in reasons if reason}
    lines = []
    slower = "last column, what takes longer"
    for what, known, seen in (("plan", NAMES, words), (slower, PARTS, parts)):
        meanings = [f"{key} = {meaning}" for key, meaning in known.items() if key in seen]
        lines += [f"{what}: {'; '.join(meanings)}"] if meanings else []
    return lines
