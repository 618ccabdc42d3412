"""Assumptions of the predictions that the published tables do not state, and their sources."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

GIB = 2.0**30


@dataclass(frozen=True, slots=True)
class Assumptions:
    """One set for all 21 rows; :data:`SOURCES` says where each comes from.

    ``overlap`` and ``recompute`` name schemes; bandwidths are of one direction, in GB/s.
    """

    rounds: int = 8
    recompute: frozenset[str] = frozenset({"1F1B", "FSDP", "WeiPipe"})
    overlap: frozenset[str] = frozenset({"WeiPipe"})
    zero_bubble_layer_tokens: int = 2**19
    layers_on_8: int = 16
    matrix_teraflops: float = 280.0
    attention_teraflops: float = 65.0
    memory: float = 1631.0
    nvlink: float = 200.0
    pcie: float = 12.0
    ethernet: float = 1.18
    node_wire: float | None = None
    held_bytes: float = 41.0
    capacity: float = 78.0


SOURCES = {
    "rounds": (
        "microbatches a rank in an iteration",
        "the weak scaling setup: batch 64 on 4 GPUs with G = 2; the tables do not say",
    ),
    "recompute": (
        "schemes in which a layer keeps its input alone",
        "their memory: G S H of 2 bytes in 32 layers is 4.3 GB of FSDP's 8.6, all a layer holds "
        "would be 73 GB; zero bubble's is that of layers that keep everything",
    ),
    "overlap": (
        "schemes whose messages and computation overlap fully; the others' not at all",
        "1F1B and zero bubble: Megatron's blocking exchanges; WeiPipe: sent ahead; FSDP: chosen",
    ),
    "zero_bubble_layer_tokens": (
        "G S times layers in zero bubble's microbatch",
        "inferred from its memory: 20.4 GB, not 73, at H = 1024, S = 4096; twice that in ZB2",
    ),
    "layers_on_8": (
        "layers in the table of 8 GPUs",
        "inferred: with 32, FSDP at H = 4096, S = 4096 would sustain more than an A800's 312 "
        "TFLOP/s",
    ),
    "matrix_teraflops": ("sustained in matrices", "fitted to FSDP's six figures on 8 GPUs"),
    "attention_teraflops": ("sustained in causal attention", "fitted to the same six"),
    "memory": ("the GPU's memory, GB/s", "80 % of 2039 GB/s"),
    "nvlink": ("GB/s a direction", "A800: 400 GB/s, both directions together"),
    "pcie": ("GB/s a direction", "PCIe 4.0 x16, 24 GB/s measured, twice over through host memory"),
    "ethernet": ("GB/s a direction", "10 Gbit/s less the headers of frames of 1500 bytes"),
    "node_wire": (
        "GB/s that all PCIe links of a node have together",
        "none by default; 6 is what WeiPipe's figures would need",
    ),
    "held_bytes": (
        "a layer without recomputation, times G S H",
        "fitted to ZB1's memory (39.6 to 42.6); 34 in GPT's layers (Korthikanti et al., 2022)",
    ),
    "capacity": (
        "GiB that a GPU has for them",
        "80 of an A800 less driver, CUDA and NCCL, about 2",
    ),
}

BASE = Assumptions()
EVERYWHERE = frozenset({"1F1B", "ZB1", "ZB2", "FSDP", "WeiPipe"})


def variations() -> list[tuple[str, Assumptions]]:
    """Each assumption changed alone, and what it is changed to in words."""
    numbers: dict[str, tuple[Any, ...]] = {
        "rounds": (2, 4, 16),
        "zero_bubble_layer_tokens": (2**18, 2**20, 2**21),
        "layers_on_8": (32,),
        "matrix_teraflops": (200.0,),
        "attention_teraflops": (130.0,),
        "memory": (None,),
        "nvlink": (50.0,),
        "pcie": (6.0, 24.0),
        "ethernet": (0.59, 2.36),
        "node_wire": (6.0,),
        "held_bytes": (34.0,),
        "capacity": (40.0, 80.0),
    }
    changed = [
        (f"{name} {'none' if value is None else value}", replace(BASE, **{name: value}))
        for name, values in numbers.items()
        for value in values
    ]
    sets = {
        "FSDP overlaps": replace(BASE, overlap=BASE.overlap | {"FSDP"}),
        "1F1B and zero bubble overlap": replace(
            BASE, overlap=BASE.overlap | {"1F1B", "ZB1", "ZB2"}
        ),
        "WeiPipe does not overlap": replace(BASE, overlap=frozenset()),
        "nobody recomputes": replace(BASE, recompute=frozenset()),
        "zero bubble recomputes, too": replace(BASE, recompute=EVERYWHERE),
    }
    return [*sets.items(), *changed]
