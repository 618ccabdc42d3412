"""Verifies a program document, independently of the compiler, from the contents of the file.

The instructions of each rank are replayed separately, to check that inputs are available, buffers
are free, and each wait belongs to a send or receive. Then the instructions of all ranks are checked
together: messages match, channels are in order, there is no deadlock (:mod:`.channels`), and
optimizer steps before the gradient norm is known can be repeated (:mod:`.norm_relay`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..units import counted
from .channels import verify_channels
from .norm_relay import verify_relays
from .program_facts import Line, ProgramFacts, TensorName, read_program
from .schedule import schedule_violations

_Op = tuple[str, int, int]


def verify_program(document: dict[str, Any]) -> list[str]:
    """All violations of the rules by a program document and its schedule, one line each.

    The list is empty if the program is valid. Raises InputError, with one line per fault, if
    ``document`` is not a program document.
    """
    facts = read_program(document, "program")
    violations = [f"schedule: {line}" for line in schedule_violations(facts.schedule)]
    for rank in range(facts.schedule.plan.ranks):
        violations += _Replay(facts, rank).violations()
    violations += _updates(facts)
    violations += _ties(facts)
    violations += verify_relays(facts)
    violations += verify_channels(facts)
    return violations


@dataclass(slots=True)
class _Replay:
    """The replay of one rank's instructions; the fields are the state before the next instruction.

    ``done``: the ops that have run; a BW is entered as B and W. ``computed``: the number of ops run
    so far. ``buffer_of``, ``tensor_in``: the buffer of each received tensor until it is freed, and
    the reverse. ``posted``, ``arrived``: the tensors whose receive is posted, and those whose
    receive was waited for. ``sent``, ``left``: likewise for sends. ``closed``: for each stage, its
    last ``reduce``, ``average`` or ``step``. ``unstepped``: if the optimizer steps after each
    microbatch, the op of each stage whose gradient no step has used yet. The methods for single
    instructions yield their violations.
    """

    facts: ProgramFacts
    rank: int
    done: set[_Op] = field(default_factory=set)
    computed: int = 0
    buffer_of: dict[TensorName, int] = field(default_factory=dict)  # from receive to free
    tensor_in: dict[int, TensorName] = field(default_factory=dict)  # of buffers in use
    posted: set[TensorName] = field(default_factory=set)  # receives posted so far
    arrived: set[TensorName] = field(default_factory=set)  # receives waited for
    sent: set[TensorName] = field(default_factory=set)  # sends posted
    left: set[TensorName] = field(default_factory=set)  # sends waited for
    closed: dict[int, Line] = field(default_factory=dict)  # last reduce, average, step
    unstepped: dict[int, str] = field(default_factory=dict)  # the op, by stage

    def violations(self) -> Iterator[str]:
        checks = {
            "recv": self._receive,
            "wait recv": self._wait_receive,
            "send": self._send,
            "wait send": self._wait_send,
            "free": self._free,
            "compute": self._compute,
            "reduce": self._close,
            "average": self._close,
            "step": self._close,
        }
        relays = ("relay sums", "relay verdict")  # checked by verify_relays
        for line in self.facts.lines[self.rank]:
            for message in () if line.verb in relays else checks[line.verb](line):
                yield f"{line}: {message}"
        yield from self._leftovers()

    def _receive(self, line: Line) -> Iterator[str]:
        tensor, buffers = line.tensor, self.facts.buffers[self.rank]
        if line.buffer >= len(buffers):
            yield f"there is no buffer {line.buffer}: the rank has {len(buffers)}"
        elif not self._fits(tensor, *buffers[line.buffer]):
            kind, stage = buffers[line.buffer]
            yield f"buffer {line.buffer} is for {kind}{stage}, not for {tensor.kind}{tensor.stage}"
        held = self.tensor_in.get(line.buffer)
        if held is not None:
            yield f"overwrites buffer {line.buffer}, which holds {held}"
            self.buffer_of.pop(held, None)
        self.tensor_in[line.buffer] = tensor
        self.buffer_of[tensor] = line.buffer
        self.posted.add(tensor)

    def _fits(self, tensor: TensorName, kind: str, stage: int) -> bool:
        """Whether ``tensor`` fits in a buffer for this kind and stage.

        A buffer for weights or their gradients can hold those of any stage with weights of at most
        the same size; any other buffer is only for its own stage.
        """
        if kind not in ("w", "dw") or stage >= self.facts.schedule.plan.stages:
            return (tensor.kind, tensor.stage) == (kind, stage)
        large, small = map(self.facts.schedule.stage, (stage, tensor.stage))
        return tensor.kind == kind and (large.weight_bytes or 0.0) >= (small.weight_bytes or 0.0)

    def _wait_receive(self, line: Line) -> Iterator[str]:
        if line.tensor not in self.posted:
            yield "no receive of it is posted before"
        elif line.tensor in self.arrived:
            yield "it is waited for twice"
        self.arrived.add(line.tensor)

    def _send(self, line: Line) -> Iterator[str]:
        tensor = line.tensor
        if tensor.kind in ("w", "dw"):
            yield from self._send_on(line)
        elif not self.done & set(_makers(tensor)):
            yield f"sent before {'F' if tensor.kind == 'x' else 'B'} has made it on this rank"
        self.sent.add(tensor)

    def _send_on(self, line: Line) -> Iterator[str]:
        """Yield violations of a send of weights or gradients.

        The copy must be on the rank, and all gradients that are added to it must be computed. The
        owner must send its weights before its step changes them.
        """
        tensor, moves = line.tensor, self.facts.moves
        if tensor not in self.facts.messages:
            return  # reported by verify_channels as unneeded
        before = self.facts.earlier.get(tensor.number)
        here = TensorName(tensor.kind, tensor.stage, before) if before is not None else None
        if here and moves[here.number].target == self.rank and not self._there(here):
            yield f"its copy has not come with {here}, or is freed"
        if tensor.kind == "dw" and self.computed < moves[tensor.number].after:
            after = moves[tensor.number].after
            yield (
                f"sent after {counted(self.computed, 'op')} of the rank, before the {after} that "
                "it waits for"
            )
        if tensor.kind == "w" and here is None and tensor.stage in self.closed:
            yield f"sent after {self.closed[tensor.stage].text}"

    def _wait_send(self, line: Line) -> Iterator[str]:
        if line.tensor not in self.sent:
            yield "no send of it is posted before"
        elif line.tensor in self.left:
            yield "it is waited for twice"
        self.left.add(line.tensor)

    def _free(self, line: Line) -> Iterator[str]:
        tensor = line.tensor
        if tensor not in self.buffer_of:
            yield "it is in no buffer"
            return
        if tensor not in self.arrived:
            yield "freed before its receive is waited for"
        yield from self._still_used(tensor)
        self.tensor_in.pop(self.buffer_of.pop(tensor), None)

    def _still_used(self, tensor: TensorName) -> Iterator[str]:
        kind, s, j = tensor
        if kind in ("x", "dy"):
            if ("W", s, j) not in self.done:
                yield f"freed before the weight gradient of stage {s}, microbatch {j} has read it"
            return
        if j in self.facts.later:
            onward = TensorName(kind, s, self.facts.later[j])
            if onward not in self.left:
                yield f"freed before it has gone on as {onward}"

    def _compute(self, line: Line) -> Iterator[str]:
        order = self.facts.schedule.order[self.rank]
        expected = order[self.computed] if self.computed < len(order) else None
        op = line.op
        if expected is None or op != expected[2:5]:
            name = expected or "nothing more"
            yield f"the schedule has {name} as op {self.computed} of this rank"
        self.computed += 1
        yield from self._inputs(op)
        if self._each:
            yield from self._in_between(op)
        elif op[0] in ("W", "BW") and op[1] in self.closed:
            yield f"runs after {self.closed[op[1]].text}"
        self.done |= {("B", *op[1:]), ("W", *op[1:])} if op[0] == "BW" else {op}

    @property
    def _each(self) -> bool:
        """Whether the optimizer steps after the gradient of each microbatch."""
        return self.facts.schedule.plan.updates == "microbatch"

    def _in_between(self, op: _Op) -> Iterator[str]:
        """Yield a violation if ``op`` runs between a microbatch's gradient and the step with it.

        No other op of the same stage may run there.
        """
        kind, stage, microbatch = op
        if stage in self.unstepped:
            yield f"runs before the step with {self.unstepped.pop(stage)}"
        if kind in ("W", "BW"):
            self.unstepped[stage] = f"{stage}{kind}{microbatch}"

    def _inputs(self, op: _Op) -> Iterator[str]:
        kind, s, j = op
        last = self.facts.schedule.plan.stages - 1
        tensors = [TensorName("x", s, j)] if s > 0 and kind not in ("O", "L") else []
        if kind in ("B", "W", "BW") and s < last:
            tensors.append(TensorName("dy", s, j))
        for tensor in tensors:
            if tensor in self.facts.messages and not self._there(tensor):
                yield f"its input {tensor} is not there: {self._why(tensor)}"
        if kind not in ("W", "O", "L") and not self._has_weights(s):
            yield f"the weights of stage {s} are not there"

    def _has_weights(self, stage: int) -> bool:
        if self.rank in self.facts.owners.get(stage, ()):
            return True
        held = (t for t in self.buffer_of if (t.kind, t.stage) == ("w", stage))
        return any(t in self.arrived for t in held)

    def _there(self, tensor: TensorName) -> bool:
        return tensor in self.arrived and tensor in self.buffer_of

    def _why(self, tensor: TensorName) -> str:
        if tensor not in self.posted:
            return "never received before"
        return "not waited for" if tensor not in self.arrived else "freed or overwritten"

    def _close(self, line: Line) -> Iterator[str]:
        """Yield violations of a ``reduce``, ``average`` or ``step``.

        They must come in this order, and after everything that adds to the stage's gradient. If the
        optimizer steps after each microbatch, a step needs a gradient that is not yet used.
        """
        if self._each:
            if line.verb != "step" or self.unstepped.pop(line.stages[0], None) is None:
                yield "no gradient is there to step with"
            return
        mine = [s for s in line.stages if self.rank in self.facts.owners.get(s, ())]
        if not mine:
            yield "no stage of it is owned by this rank"
        for stage in mine:
            earlier = self.closed.get(stage)
            if earlier and _FOLLOWING[earlier.verb] > _FOLLOWING[line.verb]:
                yield f"comes after {earlier.text}"
            if line.verb == "step":
                yield from self._still_leaving(stage)
            late = self._not_yet_added(stage)
            if late:
                yield f"comes before {late}"
            self.closed[stage] = line

    def _still_leaving(self, stage: int) -> Iterator[str]:
        """Yield a violation for each send of the owner's weights that no wait follows before a
        step.

        The step of ``stage`` changes these weights, so all their sends must have ended.
        """
        for tensor in sorted(self.sent - self.left):
            own = tensor.kind == "w" and tensor.number not in self.facts.earlier
            if own and tensor.stage == stage:
                yield f"comes before the send of {tensor} is waited for"

    def _not_yet_added(self, stage: int) -> str | None:
        """The first op or message that must still add to the stage's gradient, as text.

        None if the gradient is complete.
        """
        for run in self.facts.schedule.order[self.rank]:
            op = ("W", run.stage, run.microbatch)
            if run.stage == stage and run.kind in ("W", "BW") and op not in self.done:
                return str(run)
        for tensor, (_, target) in self.facts.messages.items():
            comes_here = (tensor.kind, tensor.stage, target) == ("dw", stage, self.rank)
            if comes_here and tensor not in self.arrived:
                return f"{tensor} has come"
        return None

    def _leftovers(self) -> Iterator[str]:
        order = self.facts.schedule.order[self.rank]
        for run in order[self.computed :]:
            yield f"rank {self.rank} never runs {run}"
        for tensor in sorted(self.posted - self.arrived):
            yield f"rank {self.rank} never waits for its receive of {tensor}"
        for tensor in sorted(self.sent - self.left):
            yield f"rank {self.rank} never waits for its send of {tensor}"
        for tensor in sorted(set(self.buffer_of) & self.arrived):
            yield f"rank {self.rank} never frees {tensor}"


_FOLLOWING = {"reduce": 0, "average": 1, "step": 2}


def _makers(tensor: TensorName) -> tuple[_Op, ...]:
    """The op that computes ``tensor``, an activation or its gradient, in a tuple of length 1."""
    if tensor.kind == "x":
        return (("F", tensor.stage - 1, tensor.number),)
    return (("B", tensor.stage + 1, tensor.number),)


def _updates(facts: ProgramFacts) -> Iterator[str]:
    """Yield a line for each step, average or reduction that a rank runs a wrong number of times.

    Each owner of a stage must step it once, or once per microbatch if the optimizer steps after
    each microbatch. If there are averages at all, each owner must average a stage as many times as
    it steps the stage. All ranks that own a stage of a reduction must run the reduction once, and
    there must be one for each replicated stage.
    """
    lines = [line for row in facts.lines for line in row]
    each = facts.schedule.plan.updates == "microbatch"
    expected = facts.schedule.plan.microbatches if each else 1
    verbs = [v for v in ("average", "step") if v == "step" or any(n.verb == v for n in lines)]
    for verb in verbs:
        runs = Counter((line.stages[0], line.rank) for line in lines if line.verb == verb)
        for stage, ranks in sorted(facts.owners.items()):
            for rank in ranks:
                times = runs[stage, rank]
                if times != expected:
                    wanted = "once" if expected == 1 else f"{expected} times"
                    yield f"{verb} {stage} runs {times} times, expected {wanted}, on rank {rank}"
    joined = Counter((line.stages, line.rank) for line in lines if line.verb == "reduce")
    replicated = {(stage,) for stage, ranks in facts.owners.items() if len(ranks) > 1}
    for group in sorted({stages for stages, _ in joined} | replicated):
        for rank in sorted({rank for s in group for rank in facts.owners.get(s, ())}):
            if joined[group, rank] != 1:
                name = " ".join(map(str, group))
                yield (
                    f"reduce {name} runs {joined[group, rank]} times on rank {rank}, expected once"
                )


def _ties(facts: ProgramFacts) -> Iterator[str]:
    """Yield a line for each group of tied stages if no reduction includes all stages of the group.

    A reduction sums the gradients of the parameters that its stages share.
    """
    joined = {line.stages for row in facts.lines for line in row if line.verb == "reduce"}
    for group in facts.schedule.plan.profile.tied:
        if not any(set(group) <= set(stages) for stages in joined):
            names = " ".join(map(str, group))
            yield f"no reduce sums what stages {names} share (tied in the profile)"
