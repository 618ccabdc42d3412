"""Checks of post-validation (optimizer steps before the gradient norm is known), for programs.

With post-validation, all ranks that run optimizer steps form one chain. Partial sums of squares for
the norm are sent along the chain before the steps (``relay sums``). In the next iteration, the
total is sent back along it; it shows whether each step was right (``relay verdict``). If a step was
wrong, all ranks repeat the ops that they have run before the verdict. Before it, a rank may
therefore run only F's, and receive only inputs that the sender, too, sends before its own verdict.
Without post-validation, there are no relays. The checks are a part of :mod:`.program`.
"""

from __future__ import annotations

from collections.abc import Iterator

from .program_facts import Line, ProgramFacts

_Chain = list[tuple[int | None, int, int | None]]  # source, rank, target


def verify_relays(facts: ProgramFacts) -> Iterator[str]:
    """Yield all violations of the rules for ``relay`` instructions, one line each."""
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
    """The chain of ``relays``, each as (source, rank, target), first the one without a source.

    The next relay is that of the target's rank, if it has this relay's rank as its source;
    otherwise, the chain ends. It is empty unless exactly one relay has no source.
    """
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
    """The instructions of a rank before its ``relay verdict``; an empty list if it has none."""
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
