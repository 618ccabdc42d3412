"""The text of a program's instructions and buffers, told apart into words and numbers."""

from __future__ import annotations

import re
from typing import NamedTuple

from .validation import wrong

_NUMBER = "([0-9]{1,9})"
_TENSOR = rf"(x|dy|w|dw){_NUMBER}\.{_NUMBER}"
_RELAY = rf"(?: from {_NUMBER})?(?: to {_NUMBER})?"
_FORMS = {
    verb: re.compile(form)
    for verb, form in {
        "recv": f"recv {_TENSOR} from {_NUMBER} into {_NUMBER}",
        "send": f"send {_TENSOR} to {_NUMBER}",
        "wait recv": f"wait recv {_TENSOR}",
        "wait send": f"wait send {_TENSOR}",
        "free": f"free {_TENSOR}",
        "compute": f"{_NUMBER}(F|BW|B|W|R|O|L){_NUMBER}",
        "reduce": "reduce ([0-9]{1,9}(?: [0-9]{1,9})*)",
        "average": f"average {_NUMBER}",
        "step": f"step {_NUMBER}",
        "relay sums": f"relay sums{_RELAY}",
        "relay verdict": f"relay verdict{_RELAY}",
    }.items()
}
_OF_TENSORS = ("recv", "send", "wait recv", "wait send", "free")
_BUFFER = re.compile(f"(x|dy|w|dw){_NUMBER}")


class TensorText(NamedTuple):
    """A tensor that travels: ``x1.0`` is ("x", 1, 0); the last is a microbatch, or a transfer."""

    kind: str
    stage: int
    number: int

    def __str__(self) -> str:
        return f"{self.kind}{self.stage}.{self.number}"


class InstructionText(NamedTuple):
    """One instruction, with what of it there is; ``op``: kind, stage and microbatch.

    ``peer``: the rank that it receives from or sends to; ``stages``: what it reduces, averages or
    steps; ``source``, ``target``: of a relay, None where it starts or ends here.
    """

    text: str
    verb: str
    tensor: TensorText = TensorText("", 0, 0)
    op: tuple[str, int, int] = ("", 0, 0)
    peer: int = 0
    buffer: int = 0
    stages: tuple[int, ...] = ()
    source: int | None = None
    target: int | None = None


def parse_text(text: object) -> InstructionText:
    """What ``text`` says. Raises PydanticCustomError, a ValueError, where it is no instruction."""
    verb = _verb(text) if isinstance(text, str) else ""
    match = _FORMS[verb].fullmatch(str(text)) if verb in _FORMS else None
    if match is None:
        raise wrong("an instruction, such as 'recv x1.0 from 0 into 3'")
    line, parts = match[0], match.groups()
    if verb == "compute":
        return InstructionText(line, verb, op=(parts[1], int(parts[0]), int(parts[2])))
    if verb in _OF_TENSORS:
        tensor = TensorText(parts[0], int(parts[1]), int(parts[2]))
        peer, buffer = (*map(int, parts[3:]), 0, 0)[:2]
        return InstructionText(line, verb, tensor, peer=peer, buffer=buffer)
    if verb in ("relay sums", "relay verdict"):
        source, target = (None if part is None else int(part) for part in parts)
        return InstructionText(line, verb, source=source, target=target)
    return InstructionText(line, verb, stages=tuple(map(int, parts[0].split())))


def _verb(text: str) -> str:
    words = text.split(" ", 2)
    if words[0] in ("wait", "relay"):
        return " ".join(words[:2])
    return words[0] if words[0] in _FORMS else "compute"


def parse_buffer(text: object) -> tuple[str, int]:
    """The kind of tensor and the stage that a buffer is for."""
    match = _BUFFER.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise wrong("a kind and a stage, such as 'dy1'")
    return match[1], int(match[2])
