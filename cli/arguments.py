"""From the fields of a request to the options and the help of a command.

This module imports nothing that loads slowly.
"""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from pipeloom.ir.errors import InputError
from pipeloom.planner.requests.fields import Option, Request, docstrings, option, options_of

PLACES = ("family", "files")
"""Positional arguments whose own names appear in messages about them. Messages about other
positional arguments name the file instead."""
LAST = ("quiet", "output", "json")
"""Options that are listed at the end of every help text."""


@dataclass(frozen=True, kw_only=True)
class Command(Request, ABC):
    """A command of ``pipeloom``. Its fields are its arguments and options."""

    json: bool = option(default=False)
    """print only one JSON object on standard output"""

    @abstractmethod
    def run(self) -> int:
        """Run the command and return its exit code."""


@dataclass(frozen=True, kw_only=True)
class WritingCommand(Command):
    """A command whose result is a document, which it writes to a file or to standard output."""

    output: str | None = option("FILE", names=("-o", "--output"))
    """where to write the result; - is standard output, the default unless it is a terminal"""


@dataclass(frozen=True, kw_only=True)
class Quiet(Request):
    """A request with the option that turns progress messages off."""

    quiet: bool = option(default=False, names=("-q", "--quiet"))
    """print no progress"""


class Together(argparse.Action):
    """The argparse action ``merge``, for an option that can be given several times.

    Its lists are merged into one sorted list without duplicates. Its dictionaries by rank are
    merged into a single one; a rank that is a key in two of them is an error.
    """

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        given = getattr(namespace, self.dest, None) or type(values)()
        if isinstance(values, dict):
            if twice := given.keys() & values.keys():
                words = f"rank {min(twice)}: expected once, got it twice"
                raise argparse.ArgumentError(self, words)
            values = given | values
        elif given:
            values = sorted({*given, *values})
        setattr(namespace, self.dest, values)


def add_options(parser: argparse.ArgumentParser, request: type[Request]) -> None:
    """Add the command-line arguments of ``request`` to ``parser``.

    The docstrings of the request's fields become their help.
    """
    parser.register("action", "merge", Together)
    words, (titled, below) = docstrings(request), request.described
    parts: dict[object, argparse._ActionsContainer] = {"": parser}
    for name, made in sorted(options_of(request).items(), key=lambda each: each[0] in LAST):
        if made.group not in parts:
            description = below if made.group == titled else None
            parts[made.group] = parser.add_argument_group(made.group, description)
        part = parts[made.group]
        pair = next((pair for pair in request.apart if name in pair), None)
        if pair is not None and pair not in parts:
            parts[pair] = part.add_mutually_exclusive_group()
        _add(parts.get(pair, part), name, made, words.get(name))


def _add(part: argparse._ActionsContainer, name: str, made: Option, words: str | None) -> None:
    how: dict[str, Any] = {"help": words}
    if made.action in ("store", "append", "merge"):
        how |= {"metavar": made.metavar, "type": made.kind.read}
        how |= {"choices": made.kind.choices or None, "nargs": made.nargs}
    if made.is_place:
        part.add_argument(name, **how)
    else:
        how |= {"dest": name, "action": made.action, "required": made.required}
        part.add_argument(*made.names, **how)


def as_typed(error: InputError, request: type[Request]) -> InputError:
    """A copy of ``error`` in which faults name the options of ``request``, not its fields.

    For example, ``--solver`` instead of ``solver``.
    """
    made = options_of(request).items()
    typed = {name: each.names[-1] for name, each in made if not each.is_place or name in PLACES}
    return renamed(error, typed | {"microbatches": "-m/--microbatches"})


def renamed(error: InputError, names: dict[str, str]) -> InputError:
    """A copy of ``error`` in which the first part of each fault's key is replaced by another name.

    ``names``: from the first part of a key, such as a field, to its replacement. Faults whose keys
    begin with another name, or that are in a file, are not changed.
    """
    return error.changed(lambda fault: fault.renamed(names))
