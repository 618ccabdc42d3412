"""The small files of the cases, and what changes them."""

from __future__ import annotations

import json
from functools import cache
from math import inf, nan
from typing import Any

import pipeloom
from tests.support.command_line import layers_document as layers
from tests.support.command_line import profile_document as profile
from tests.support.command_line import without_none

__all__ = ["inf", "layers", "nan", "profile"]

Json = dict[str, Any]
SOUND = {
    "p.json": "profile()",
    "l.json": "layers()",
    "s.json": "schedule()",
    "g.json": "pipeloom.dump_program(pipeloom.compile(schedule()))",
    "c.json": "model()",
    "k.json": "cluster()",
    "r.json": "traced({'0F0': 1, '0BW0': 8, '1F0': 2, '1BW0': 8})",
}
"""Files that a case may name without saying what is in them."""


def content(expression: str) -> bytes:
    """The bytes of a file: JSON, text, or bytes as they are."""
    value = eval(expression)
    if isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else json.dumps(value)).encode()


def traced(took: dict[str, float]) -> Json:
    """A trace of ops with their times in milliseconds."""
    return {
        "traceEvents": [
            {"ph": "X", "cat": "user_annotation", "name": name, "ts": 0, "dur": 1e3 * time}
            for name, time in took.items()
        ]
    }


def stage(**changes: Any) -> Json:
    return without_none(profile()["stages"][0] | changes)


def alike(**changes: Any) -> Json:
    """A profile whose two stages are so."""
    return profile(stages=[stage(**changes)] * 2)


def unlike(**changes: Any) -> Json:
    """A profile of three microbatches that are unlike."""
    return alike(t_f=[1.0, 2.0, 4.0], m_b=[1.0, 1.0, 2.0], m_w=1.0, **changes)


@cache
def _schedule() -> str:
    return json.dumps(pipeloom.dump_schedule(pipeloom.build("zb-h1", profile(), 3)))


def schedule(**changes: Any) -> Json:
    return without_none(json.loads(_schedule()) | changes)


def op(kind: str = "F", at: int | None = 0, start: float = 0, end: float = 1) -> Json:
    """An order of one op of microbatch 0, and a rank without any."""
    found = {"op": kind, "stage": at, "microbatch": 0, "start": start, "end": end}
    return schedule(order=[[without_none(found)], []])


def model(**changes: Any) -> Json:
    sizes = {"hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 14336}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256}
    return without_none({"model_type": "llama", **sizes, **heads} | changes)


def cluster(**changes: Any) -> Json:
    link = {"latency": 0.03, "gigabytes_per_second": 12.5}
    places = {"gpu": "H100", "gpus_per_node": 4, "inside": "pcie5-x16", "between": link}
    return {"format": "pipeloom.cluster", "version": 1, "name": "ours"} | places | changes


def lengths(**changes: Any) -> Json:
    found = {"format": "pipeloom.lengths", "version": 1, "reference_length": 1000}
    given = [900, 100, 400, 30, 250, 700, 60, 500, 120, 340]
    return without_none(found | {"lengths": given, "attention": 0.2} | changes)


def measured(**changes: Any) -> Json:
    """Measurements of one run."""
    run = {"model": "llama-3-8b", "gpu": "H200", "gpus": 8, "tp": 1, "pp": 1, "seq": 2048}
    sizes = {"step_ms": 1.0, "micro_batch": 1, "global_batch": 32}
    return {"runs": [without_none(run | sizes | changes)]}
