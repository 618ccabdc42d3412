"""The published throughput and memory beside predictions: run, print, record."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from ..markdown import markdown
from ..recording import record
from .agreement import Agreement, Compared, compare, sensitivity
from .assumptions import BASE, SOURCES
from .predict import FAMILY

WINNERS_NEEDED = 20  # of 21


def run(folder: Path) -> int:
    """1 where fewer than 20 winners, or not all of the cells that ran out of memory, are
    predicted."""
    compared, varied = compare(), sensitivity()
    base = Agreement.of(compared)
    print(f"{_assumptions()}\n\n{_throughputs(compared)}\n\n{_memories(compared)}\n")
    print(f"{_sensitivity(base, varied)}\n")
    result = {
        "assumptions": _plain(),
        "agreement": asdict(base),
        "cells": [_cell(one, name) for one in compared for name in FAMILY],
        "winners": [
            {"row": str(one.row), "published": one.row.winner, "predicted": one.winner}
            for one in compared
        ],
        "sensitivity": [{"changed": words, **asdict(found)} for words, found in varied],
    }
    print(f"recorded in {record(folder, 'published', result)}")
    return 0 if base.winners >= WINNERS_NEEDED and base.memory == len(compared) * len(FAMILY) else 1


def _plain() -> dict[str, dict[str, Any]]:
    """Each assumption: its value, what it is, where it comes from."""
    return {
        field.name: {
            "value": sorted(value) if isinstance(value, frozenset) else value,
            "what": SOURCES[field.name][0],
            "source": SOURCES[field.name][1],
        }
        for field in fields(BASE)
        for value in [getattr(BASE, field.name)]
    }


def _cell(one: Compared, scheme: str) -> dict[str, Any]:
    found = one.found[scheme]
    return {
        "row": str(one.row),
        "scheme": scheme,
        "published": one.row.throughput[scheme],
        "predicted": found.throughput,
        "error": one.error(scheme),
        "published_memory": one.row.memory.get(scheme),
        "predicted_memory": found.memory,
        "memory_error": one.memory_error(scheme),
        "predicted_to_fit": found.fits,
    }


def _assumptions() -> str:
    rows = [
        [key, _value(entry["value"]), entry["what"], entry["source"]]
        for key, entry in _plain().items()
    ]
    return "\n".join(markdown(["assumption", "value", "what it is", "source"], rows))


def _value(value: Any) -> str:
    if value is None:
        return "none"
    return ", ".join(value) if isinstance(value, list) else f"{value:g}"


def _throughputs(compared: list[Compared]) -> str:
    """Published / predicted tokens/s a GPU, and the error; OOM where memory does not suffice."""
    rows = []
    for one in compared:
        cells = [_throughput(one, name) for name in FAMILY]
        winner = one.winner if one.right else f"{one.winner}, not {one.row.winner}"
        rows.append([*_head(one), *cells, winner])
    return "\n".join(markdown(["GPUs and links", "H", "S", "G", *FAMILY, "predicted winner"], rows))


def _throughput(one: Compared, scheme: str) -> str:
    published, found, error = one.row.throughput[scheme], one.found[scheme], one.error(scheme)
    words = "OOM" if published is None else f"{published:.0f}"
    guess = f"{found.throughput:.0f}" if found.fits else "OOM"
    share = "" if error is None or not found.fits else f" ({error:+.0%})"
    return f"{words} / {guess}{share}"


def _memories(compared: list[Compared]) -> str:
    """Published / predicted GB, where the tables have them."""
    rows = [
        [*_head(one), *(_memory(one, name) for name in FAMILY)]
        for one in compared
        if one.row.memory
    ]
    return "\n".join(markdown(["GPUs and links", "H", "S", "G", *FAMILY], rows))


def _memory(one: Compared, scheme: str) -> str:
    published = one.row.memory[scheme]
    words = "OOM" if published is None else f"{published:.1f}"
    return f"{words} / {one.found[scheme].memory:.1f}"


def _sensitivity(base: Agreement, varied: list[tuple[str, Agreement]]) -> str:
    rows = [
        [words, f"{found.winners} of 21", f"{found.memory} of 105", f"{found.error:.0%}"]
        for words, found in [("nothing", base), *varied]
    ]
    return "\n".join(
        markdown(["changed alone", "winners right", "fits or not right", "median error"], rows)
    )


def _head(one: Compared) -> list[str]:
    row = one.row
    return [row.table.replace("_", " "), str(row.hidden), str(row.sequence), str(row.microbatch)]
