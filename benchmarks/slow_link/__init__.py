"""Passing activations, weights or shards on a ring of network namespaces with one slow link, and
training under faults."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from .. import Case, Claim, Column, Row, Rows, Size, Table, of_part

ROOMS = ("ir", "solver", "planner", "compiler", "runtime")
RING, FAULTS = "ring", "faults"
NAMES = (
    "wide", "wider", "long", "middle", "middle-short", "deep-ends", "deeper-ends", "wide-ends",
    "middle-wide",
)  # fmt: skip
"""The configurations."""
SEEDS, EARLIER, COUNT = (61, 62), (51, 52, 19), 200
"""Seeds of runs with faults, and how many of these each has."""
ALLOWED = 0.15  # by how much a prediction may miss what is measured
HEADERS = 0.1  # with acknowledgements and what ranks tell each other beside the plan
LOSSES = 1e-4  # relative: float32 sums in another order
SCHEMES = ("activations", "weights", "fsdp", "fully_shard")


def cases(size: Size) -> Iterator[Case]:
    for name in ("middle",) if size == "small" else NAMES:
        yield Case(RING, name, timed=True)
    for seed in {"small": (), "usual": SEEDS, "large": (*EARLIER, *SEEDS)}[size]:
        yield Case(FAULTS, f"seed {seed}", {"seed": seed}, timed=True, fresh=True)


def measure(case: Case) -> Row:
    """Each scheme predicted and trained, or what faults did to training; needs root."""
    if case.part == FAULTS:
        from .chaos import disturbed

        return disturbed(case.given["seed"], COUNT)
    from .configurations import CONFIGURATIONS
    from .experiment import run

    return run(next(c for c in CONFIGURATIONS if c.name == case.name))


def judge(rows: Rows) -> Iterator[Claim]:
    if own := of_part(rows, RING):
        yield from _ring(own)
    if own := of_part(rows, FAULTS):
        kinds = sum((Counter(row["faults"]) for row in own), Counter[str]())
        broken = [line for row in own for line in row["broken"]]
        last = own[-1]
        words = (
            f"Training under {kinds.total()} faults: {len(broken)} were not handled as promised, "
            f"{len(last['broken'])} of the last {sum(last['faults'].values())}. All ranks end in "
            "time with a readable line, leave nothing behind, and losses are those of an "
            "undisturbed run."
        )
        yield Claim(FAULTS, words, not last["broken"])


def _ring(rows: Rows) -> Iterator[Claim]:
    picked = sum(row["auto"] in row["winners"] for row in rows)
    words = (
        "`--passing auto` picks the fastest scheme, or one level with it, in "
        f"{picked} of {len(rows)} trained configurations."
    )
    yield Claim(RING, words, picked == len(rows))
    schemes = [scheme for row in rows for scheme in row["schemes"]]
    ours, torchs = (
        max(abs(each["error"]) for each in schemes if (each["scheme"] == "fully_shard") == theirs)
        for theirs in (False, True)
    )
    words = (
        f"Steps of our schemes are within {ours:.1%} of their predictions, those of `fully_shard` "
        f"within {torchs:.0%}."
    )
    yield Claim(RING, words, max(ours, torchs) <= ALLOWED)
    equal = all(
        allclose(scheme["losses"], row["schemes"][0]["losses"])
        for row in rows
        for scheme in row["schemes"]
    )
    yield Claim(RING, "Losses of all schemes agree to 1e-4.", equal)
    more = [share for each in schemes for share in _more_than_planned(each)]
    words = (
        f"Every link carries the bytes that are planned for it, and at most {max(more):.1%} more."
    )
    yield Claim(RING, words, 0 <= min(more) <= max(more) <= HEADERS)


def _more_than_planned(scheme: Row) -> Iterator[float]:
    """Bytes that a link carries each way beyond those planned, as a share of these."""
    for planned, carried in zip(scheme.get("planned_wires", ()), scheme["wires"], strict=False):
        yield from (b / a - 1 for a, b in zip(planned, carried, strict=True) if a)


def allclose(losses: Sequence[float], others: Sequence[float]) -> bool:
    """Equal but for the order in which float32 sums are made."""
    return len(losses) == len(others) and all(
        math.isclose(a, b, rel_tol=LOSSES) for a, b in zip(losses, others, strict=True)
    )


def _scheme(name: str) -> Column:
    def cell(row: Row) -> str | None:
        found = [each for each in row["schemes"] if each["scheme"] == name]
        if not found:
            return None
        text = f"{found[0]['measured_ms']:.0f} / {found[0]['predicted_ms']:.0f}"
        return f"**{text}**" if name == row["auto"] else text

    return Column(name, cell)


def _model(row: Row) -> str:
    model: dict[str, Any] = row["model"]
    return "{layers} blocks of {width}, {microbatch} x {context}".format(**model)


columns = {
    RING: Table(
        [
            Column("configuration", "case"),
            Column("model", _model),
            Column("M", "microbatches"),
            Column("T_F, T_B, T_W ms", lambda row: f"{row['times_ms'][0]:g} each"),
            Column("slow link", lambda row: row["ring"]["slow"]),
            *map(_scheme, SCHEMES),
            Column("fastest", lambda row: ", ".join(row["winners"])),
        ]
    ),
    FAULTS: Table(
        [
            Column("run", "case"),
            Column("faults", lambda row: sum(row["faults"].values())),
            Column("kinds", lambda row: ", ".join(f"{n} {k}" for k, n in row["faults"].items())),
            Column("load", "load_average"),
            Column("not as promised", lambda row: len(row["broken"])),
        ]
    ),
}
