"""Profiles of microbatches with given sequences, computed without the library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pipeloom import Profile, dump_profile
from pipeloom.ir import parse_profile


def packed_profile(
    profile: Profile, document: dict[str, Any], part: Sequence[Sequence[int]]
) -> Profile:
    """``profile``, measured on the reference's microbatch, for the microbatches of ``part``.

    ``attention``: for each op and stage, the share of time that is proportional to squared lengths;
    the rest, and all memory, is proportional to tokens.
    """
    length, size = document["reference_length"], profile.micro_batch or 1
    rows = [[document["lengths"][i] / length for i in each] for each in part]
    tokens = [sum(row) / size for row in rows]
    squares = [sum(x * x for x in row) / size for row in rows]
    whole = dump_profile(replace(profile, micro_batch=None))
    for number, stage in enumerate(whole["stages"]):
        for key, shares in document["attention"].items():
            pairs = zip(tokens, squares, strict=True)
            share = shares[number]
            stage[key] = [stage[key] * ((1 - share) * x + share * y) for x, y in pairs]
        stage |= {key: [stage[key] * x for x in tokens] for key in ("m_b", "m_w")}
    return parse_profile(whole, "packed")
