"""Checks of optimizer steps before the global norm is known; part of :mod:`.program`.

Either no rank relays, or all ranks that step form one chain: sums are sent along it before the
steps, and the verdict back along it in the next iteration. If a step was wrong, all ranks repeat
what they have run before the verdict. So they may run only F's before it, and the inputs of these
must also have been sent before a verdict.
"""

from __future__ import annotations

from collections.abc import Iterator

from .program_facts import Line, ProgramFacts

_Chain = list[tuple[int | None, int, int | None]]  # source, rank, target


def verify_relays(facts: ProgramFacts) -> Iterator[str]:
    """All violations of the norm relay, one line each."""
    lines = [line for row in facts.lines for line in row]
    sums = [line for line in lines if line.verb == "relay sums"]
    verdicts = [line for line in lines if line.verb == "relay verdict"]
    if not sums and not verdicts:
        return
    if facts.moves:
        yield f"{(sums + verdicts)[0]}: no rank can step ahead where weights are passed"
    stepping = {line.rank for line in lines if line.verb == "step"}
    for name, relays in (("relay sums", sums), ("relay verdict", verdicts)):
        ranks = sorted(line.rank for line in relays)
        if ranks != sorted(stepping):
            yield f"ranks {sorted(stepping)} step, {name} is done by ranks {ranks}"
    if len(_chain(sums)) < len(sums):
        yield "the sums do not go from rank to rank, once through each"
    if _chain(sums) != [link[::-1] for link in reversed(_chain(verdicts))]:
        yield "the verdict is not relayed back on the way that the sums came"
    for row in facts.lines:
        yield from _sums_before_steps(row)
    yield from _heads(facts)


def _chain(relays: list[Line]) -> _Chain:
    """The chain of relays from the one without a source, as far as sources and targets match."""
    by_rank = {line.rank: line for line in relays}
    begins = [line for line in relays if line.source is None]
    line = begins[0] if len(begins) == 1 else None
    chain: _Chain = []
    while line is not None and len(chain) < len(relays):
        chain.append((line.source, line.rank, line.target))
        after = None if line.target is None else by_rank.get(line.target)
        line = after if after is not None and after.source == line.rank else None
    return chain


def _heads(facts: ProgramFacts) -> Iterator[str]:
    heads = [_head(row) for row in facts.lines]
    early = {line.tensor for head in heads for line in head if line.verb == "send"}
    for line in (line for head in heads for line in head):
        if line.verb == "compute" and line.op[0] != "F":
            yield f"{line}: runs before the verdict, and cannot be run again"
        if line.verb == "recv" and line.tensor not in early:
            yield f"{line}: posted before the verdict, but sent after the sender's"


def _head(row: list[Line]) -> list[Line]:
    """The lines before the rank's verdict; empty if it has none."""
    at = next((line.at for line in row if line.verb == "relay verdict"), 0)
    return row[:at]


def _sums_before_steps(row: list[Line]) -> Iterator[str]:
    at = {
        verb: [line.at for line in row if line.verb == verb]
        for verb in ("relay sums", "step", "compute", "reduce", "average")
    }
    gradients = at["compute"] + at["reduce"] + at["average"]
    for line in row:
        if line.verb == "relay sums" and min(at["step"], default=line.at) < line.at:
            yield f"{line}: comes after a step"
        if line.verb == "relay sums" and max(gradients, default=-1) > line.at:
            yield f"{line}: comes before all gradients are there"
