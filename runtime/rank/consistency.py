"""Agreement of all ranks, compared before anything else: unlike programs would hang."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import zip_longest
from typing import Any

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.program import Program

from ..transport import agreed

SHOWN = 16  # digits of a hash in a message


def check_agreement(
    program: Program, options: Mapping[str, object], gather: Callable[[Any], list[Any]]
) -> None:
    """Raises InputError, the same on all ranks, where program or options differ.

    Compared are hashes of what decides who does what: instructions, buffers, placement, transfers.
    Profiles, planned times and reports may differ. Every rank calls it, with what
    gathers a value of each.
    """
    lines = [*(f"{name}: {value}" for name, value in options.items()), *described(program)]
    digest = sha256("\n".join(lines).encode()).hexdigest()
    digests: list[str] = gather(digest)
    if len(set(digests)) > 1:
        raise agreed(InputError(_difference(digests, gather(lines))))


def described(program: Program) -> Iterator[str]:
    """A program line by line, each with its place."""
    problem = program.schedule.problem
    yield f"ranks, stages, microbatches: {problem.ranks}, {problem.stages}, {problem.microbatches}"
    for rank, row in enumerate(program.instructions):
        for i, instruction in enumerate(row):
            yield f"instruction {i} of rank {rank}: {instruction}"
    for rank, buffers in enumerate(program.buffers):
        yield f"buffers of rank {rank}: {' '.join(map(str, buffers))}"
    for stage, ranks in enumerate(problem.owner.tolist()):
        yield f"ranks of stage {stage}: {ranks}"
    for x, transfer in enumerate(program.schedule.transfers):
        yield f"transfer {x}: {transfer}"


def same(one: Program, other: Program) -> bool:
    """Whether two programs run alike, as a program and its copy do on another rank."""
    return one is other or _structure(one) == _structure(other)


def _structure(program: Program) -> tuple[object, ...]:
    """The facts that :func:`described` puts into words; ops say what is placed where."""
    return program.instructions, program.buffers, tuple(program.schedule.transfers)


def _difference(digests: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    having: dict[str, list[int]] = {}
    for rank, digest in enumerate(digests):
        having.setdefault(digest, []).append(rank)
    parts = [
        f"{digest[:SHOWN]} on rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
        for digest, ranks in having.items()
    ]
    one, other, *_ = (ranks[0] for ranks in having.values())
    pairs = zip_longest(rows[one], rows[other], fillvalue="nothing more")
    first, second = next((a, b) for a, b in pairs if a != b)
    return (
        f"program: expected one on all ranks, got {', '.join(parts)} (hashes); they differ first "
        f"in {first!r} on rank {one}, {second!r} on rank {other}"
    )
