"""A case: a command, its damaged file, and sometimes an unusual option."""

from __future__ import annotations

import json
import shlex
from argparse import Action
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

from tests.support.inner import parser_of

from .damage import damaged
from .documents import COMMANDS, SLOW, sound

ODD = [
    *("-1", "0", "1", "3", "1e9", "1e-9", "100000", "nan", "", "--", "x", "\x1b[31m", "a\nb"),
    *("v", "wave:2", "interleaved:0", "interleaved:9", "auto", "none", "0,0", "0,1", "1G"),
    "x" * 900,
    *("0:1.2", "1:1e300", "0:1,0:2", "attention", "2,4"),
    *("makespan", "balanced", "even", "joint", "weights", "megatron", "cp-sat"),
]
APART = {
    *("-h", "--json", "-o", "--save", "--trace", "--cache", "--color"),
    *("--time-limit", "--work-limit", "--workers", "--scheduler"),
}
"""Options that are not tried: they write where the word says, or colours, take as long, or start
processes."""
CERTIFICATE = "--certificate"
"""Only ``verify`` reads it."""
SLOW_SHARE = 0.05
LARGEST_M = "24"
"""Replaces a random number of microbatches that is valid but takes minutes."""


@dataclass(frozen=True, slots=True)
class Case:
    """A command line ``words`` that reads the damaged ``file``."""

    seed: int
    number: int
    kind: str
    words: tuple[str, ...]
    file: Path

    def __str__(self) -> str:
        where = f"--seed {self.seed} --first {self.number} --count 1"
        return f"[{where}] {self.kind}: {shlex.join(self.words)!a}"


def random_case(seed: int, number: int, folder: Path) -> Case:
    """The case with this number; its files are written to ``folder``."""
    draw = Random(f"{seed} {number}")
    kind = draw.choice([kind for kind, commands in COMMANDS.items() for _ in commands])
    file = folder / f"damaged-{kind}"
    file.write_bytes(damaged(draw.choice(sound()[kind]), draw, _donors(kind, draw)))
    places = {"folder": str(folder)} | _sound_files(folder)
    slow = kind in SLOW and draw.random() < SLOW_SHARE
    commands = (SLOW if slow else COMMANDS)[kind]
    words = [word.format(file, **places) for word in draw.choice(commands)]
    if draw.random() < 0.15:
        words += _odd_option(words, draw)
    return Case(seed, number, kind, tuple(words), file)


def sound_lines(folder: Path) -> dict[str, list[str]]:
    """For each command, a command line that reads valid files, which are written to ``folder``."""
    places = {"folder": str(folder)} | _sound_files(folder)
    found: dict[str, list[str]] = {}
    for kind, lines in (*COMMANDS.items(), *SLOW.items()):
        for command, *words in lines:
            given = [word.format(places[kind], **places) for word in words if word != "--json"]
            found.setdefault(command, [command, *given])
    return found


def _donors(kind: str, draw: Random) -> list[Any]:
    """Documents of the same kind, or else of any kind; JSON only."""
    sources = sound()[kind] if draw.random() < 0.5 else chain.from_iterable(sound().values())
    return [each for each in sources if not isinstance(each, str)] or [{}]


@cache
def _options(command: str) -> list[Action]:
    """The options of a command that may be given any value, from its parser."""
    parser, _ = parser_of(command)
    apart = APART if command == "verify" else APART | {CERTIFICATE}
    return [
        action
        for action in parser._actions
        if action.option_strings and not apart & {*action.option_strings}
    ]


def _odd_option(words: list[str], draw: Random) -> list[str]:
    """An additional option with its value, which is not yet in ``words``."""
    known = [each for each in _options(words[0]) if not {*each.option_strings} & {*words}]
    if not known:
        return []
    action = draw.choice(known)
    option = draw.choice(action.option_strings)
    if action.nargs == 0:
        return [option]
    choices = list(map(str, action.choices or ()))
    value = draw.choice(choices if choices and draw.random() < 0.5 else ODD)
    if "-m" in action.option_strings and value == "100000":
        value = LARGEST_M
    return [f"{option}={value}"] if option.startswith("--") else [option, value]


@cache
def _sound_files(folder: Path) -> dict[str, str]:
    found = {}
    for kind, values in sound().items():
        path = folder / f"sound-{kind}"
        path.write_text(_text(values[0]))
        found[kind] = str(path)
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
