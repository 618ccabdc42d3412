"""The ``pipeloom`` command. The file of a subcommand is imported only when that subcommand is
called."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import signal
import sys
import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from pipeloom import __version__
from pipeloom.ir.errors import Fault, InputError, PipeloomError, did_you_mean, standard_output
from pipeloom.ir.removed import replaced

from .arguments import Command, add_options, as_typed
from .failures import FAILED, TRACEBACK, closed_streams, delivered, tell, with_file

# command: its module in `commands/`, which has its class, and a one-line description
COMMANDS: dict[str, tuple[str, str]] = {
    "profile": ("training.profile", "measure a model's stages and links"),
    "optimize": ("planning.optimize", "find the best schedule for a profile, with a lower bound"),
    "build": ("planning.build", "build a named schedule: gpipe, 1f1b, zb-h1, ..."),
    "compare": ("planning.compare", "compare all families and the optimizer"),
    "plan": ("planning.plan", "find the best configurations of a model on a number of GPUs"),
    "predict": ("planning.predict", "predict the time and memory of a configuration"),
    "sweep": ("planning.sweep", "find the best schedule for each memory limit"),
    "verify": ("files.verify", "check a schedule or a program"),
    "show": ("files.show", "draw schedules: in the terminal, SVG, HTML, PNG or a Chrome trace"),
    "compile": ("files.compile", "compile a schedule to a list of instructions for each rank"),
    "run": ("training.run", "train with a program, on local processes or under torchrun"),
    "export": ("files.export", "write a schedule in another system's format"),
    "import": ("files.import_", "read another system's format"),
    "serve": ("planning.serve", "explore profiles and schedules in a browser"),
}
USAGE = {
    "unrecognized arguments: ": "unrecognized",
    "the following arguments are required: ": "missing",
}
"""Beginnings of messages of argparse, each followed by arguments in the message, and the word by
which our message about these arguments replaces the beginning."""
CBC = "pipeloom.solver.exact.cbc"
LEFT = "solve_"
"""Prefix of the names of threads that may still be running at exit: those of
:func:`pipeloom.solver.core.worker_threads.in_thread`.

A thread that computes in C++ while Python exits would abort the process. The names are repeated
here because importing these modules takes too long.
"""


class Answered(SystemExit):
    """Raised to exit after ``--help`` or ``--version``.

    It distinguishes this exit from a SystemExit that a model raises.
    """


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises InputError for wrong usage.

    The error is then reported like any other invalid input.
    """

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise Answered(status)

    def error(self, message: str) -> NoReturn:
        key, _, words = message.removeprefix("argument ").partition(": ")
        for lead, said in USAGE.items():
            if message.startswith(lead):
                key, words = message.removeprefix(lead), said
        hint = f"{self._meant(message)} (see {self.prog} --help)"
        raise InputError(Fault(f"{words}{hint}", key=key))

    @property
    def options(self) -> Collection[str]:
        """The names of all options that this parser accepts."""
        return self._option_string_actions

    def refuse_removed(self, words: Sequence[str]) -> None:
        """Raise InputError if one of ``words``, the command line, is an option that was removed.

        This is called before parsing, which would first report options that are missing.
        """
        for name in (word.partition("=")[0] for word in words if word.startswith("--")):
            line = replaced(name, self.prog.removeprefix("pipeloom "))
            if line is not None and name not in self.options:
                raise InputError(f"{name}: {line}")

    def _meant(self, message: str) -> str:
        """A hint for an argparse ``message``, or an empty string.

        It names the replacement of a removed value, the commands that have an unknown option, or
        the most similar choice or option.
        """
        value = re.match(r"argument (?:\S+/)?(--\S+): invalid choice: '(\S+)' \((.*)\)", message)
        if value:
            line = replaced(f"{value[1]} {value[2]}")
            choices = re.findall(r"'([^']+)'", value[3])
            return did_you_mean(value[2], choices) if line is None else f"; {value[2]} {line}"
        unknown = re.match(r"unrecognized arguments: (--[^ =]+)", message)
        if unknown:
            others = [name for name in COMMANDS if unknown[1] in parser_of(name)[0].options]
            elsewhere = f"; it is an option of {', '.join(others)}"
            begun = [name for name in self.options if name.startswith(unknown[1])]
            near = did_you_mean(unknown[1], begun, 0.3) or did_you_mean(unknown[1], self.options)
            return elsewhere if others and not begun else near
        lists = any(",..." in str(action.metavar) for action in self._actions)
        several = lists and re.match(r"unrecognized arguments: [0-9]", message)
        return "; several values of an option are one word, with commas: 8,10" if several else ""

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """Convert a value from text; report an InputError of the conversion as a usage error."""
        try:
            return super()._get_value(action, arg_string)
        except InputError as error:
            words = str(error).removeprefix(f"{action.dest}: ")
            raise argparse.ArgumentError(action, words) from None

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help. Unlike argparse, raise an error if it cannot be written."""
        if message:
            with standard_output():
                (file or sys.stderr).write(message)


def main(
    argv: Sequence[str] | None = None,
    told: tuple[type[BaseException], ...] = (Exception, KeyboardInterrupt, SystemExit),
) -> int:
    """Run one command and return its exit code.

    Exceptions of the types ``told`` are printed as messages without a traceback; others are raised.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if closed_streams():
        return FAILED
    try:
        code = _run(words)
    except Answered:
        code = 0
    except told as error:
        if os.environ.get(TRACEBACK) and not isinstance(error, PipeloomError | KeyboardInterrupt):
            raise
        code = tell(error, as_json="--json" in words)
    return delivered(code)


def command() -> NoReturn:
    """Run :func:`main` and exit with its code, without waiting for threads that still run."""
    code = main(told=(BaseException,))  # including panics from Rust
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the exit code is final
    if any(thread.name.startswith(LEFT) for thread in threading.enumerate()):
        if (cbc := sys.modules.get(CBC)) is not None:
            cbc.end_all()
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code)


def _run(words: list[str]) -> int:
    for stream in (sys.stdout, sys.stderr):  # without Unicode, print ? instead of failing
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    if not words or words[0] in ("-h", "--help", "--version"):
        _overview().parse_args(words or ["--help"])
    if words[0] not in COMMANDS:
        raise InputError(_unknown(words[0]))
    name, rest = words[0], words[1:]
    parser, command = parser_of(name)
    _check_dashes(rest)
    parser.refuse_removed(rest)
    given = vars(parser.parse_args(rest))
    try:
        return command(**given).run()
    except InputError as error:
        raise with_file(as_typed(error, command), given, rest) from None


def parser_of(name: str) -> tuple[Parser, type[Command]]:
    """The parser of the command ``name`` and the class of that command.

    The description and the examples in its help are the docstring of the command's module.
    """
    module = importlib.import_module(f"pipeloom.cli.commands.{COMMANDS[name][0]}")
    description, _, examples = (module.__doc__ or "").partition("\nexample:\n")
    parser = Parser(
        prog=f"pipeloom {name}",
        description=description,
        epilog=f"example:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    command: type[Command] = getattr(module, f"{name.capitalize()}Command")
    add_options(parser, command)
    return parser, command


def _check_dashes(words: list[str]) -> None:
    """Raise InputError for ``--option=--``, which argparse would parse as an empty list."""
    for word in words:
        if (found := re.fullmatch(r"(--[a-z-]+)=--|(-[a-z])--", word)) is not None:
            raise InputError(f"{found[1] or found[2]}: expected a value, got '--'")


def _unknown(name: str) -> str:
    if (line := replaced(f"pipeloom {name}")) is not None:
        return f"COMMAND: {name} {line}"
    hint = did_you_mean(name, COMMANDS)
    return (
        f"COMMAND: expected one of {', '.join(COMMANDS)}, got {name!r}{hint} (see pipeloom --help)"
    )


def _overview() -> Parser:
    """The parser of ``pipeloom`` itself, which only lists the commands."""
    width = max(map(len, COMMANDS)) + 2
    lines = "\n".join(f"  {name:<{width}}{words}" for name, (_, words) in COMMANDS.items())
    parser = Parser(
        prog="pipeloom",
        usage="pipeloom COMMAND ... (pipeloom COMMAND --help explains one)",
        description="The best pipeline schedule for measured times and memory limits, with a "
        "proof.",
        epilog=f"commands:\n{lines}\n\nexample:\n"
        "  pipeloom optimize profile.json -m 24 -o schedule.json && pipeloom show schedule.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"pipeloom {__version__}")
    parser.add_argument(
        "command", metavar="COMMAND", choices=list(COMMANDS), help="one of the below"
    )
    return parser
