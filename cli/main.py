"""The ``pipeloom`` command: one file a subcommand, imported only when it is called."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any, NoReturn

from pipeloom import __version__
from pipeloom.ir.errors import InfeasibleError, InputError, InvalidScheduleError, PipeloomError

# command: its module in this folder, and what it does in one line
COMMANDS: dict[str, tuple[str, str]] = {
    "profile": ("profile", "measure a model's stages and links into a profile"),
    "optimize": ("optimize", "profile and memory limits to the best schedule, with a bound"),
    "build": ("build", "a named schedule: gpipe, 1f1b, zb-h1, ..."),
    "compare": ("compare", "all families and the optimizer side by side"),
    "analyze": (
        "analyze",
        "what each scheme costs: bubble, bytes, memory, and when to pass weights",
    ),
    "arithmetic": ("arithmetic", "a model's parameters, FLOPs and bytes by layer, and its links"),
    "sweep": ("sweep", "the memory limit against the bubble rate"),
    "verify": ("verify", "check a schedule or program, whoever made it"),
    "show": ("show", "a picture: in the terminal, SVG, HTML, PNG or a Chrome trace"),
    "compile": ("compile", "schedule to per-rank instruction lists"),
    "run": ("run", "train with a compiled program on local processes or under torchrun"),
    "tune": ("tune", "train, measure the steps, and plan anew from them while the job runs"),
    "export": ("export", "schedule to another system's format"),
    "import": ("import_", "another system's format to a schedule"),
}
INTERRUPTED, INTERNAL = 130, 70
MOST_LINES = 20
TRACEBACK = "PIPELOOM_TRACEBACK"
LEFT = "solve_"
"""Prefix of the names of :func:`pipeloom.solver.core.worker_threads.begun`'s threads; that module
takes too long to import for this."""


class Parser(argparse.ArgumentParser):
    """Wrong usage is an InputError: one readable line, like every other wrong input."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code and lets nothing escape as a traceback."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(words)
        sys.stdout.flush()
    except SystemExit as stop:  # --help and --version
        return int(stop.code or 0)
    except PipeloomError as error:
        return _fail(error, as_json="--json" in words)
    except KeyboardInterrupt as stop:
        _complain(f"interrupted{str(stop) or '; nothing was written'}", as_json="--json" in words)
        return INTERRUPTED
    except BrokenPipeError:
        # whoever read our output has seen enough; keep Python from flushing into the closed pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if os.environ.get(TRACEBACK):
            raise
        _complain(
            f"internal error: {type(error).__name__}: {' '.join(str(error).split())} "
            f"({TRACEBACK}=1 shows where)",
            as_json="--json" in words,
        )
        return INTERNAL
    return code


def command() -> NoReturn:
    """The process's end: :func:`main`, and no waiting for what a solve has left alone."""
    code = main()
    if any(thread.name.startswith(LEFT) for thread in threading.enumerate()):
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code)


def _run(words: list[str]) -> int:
    for stream in (sys.stdout, sys.stderr):  # a terminal without Unicode gets ? instead of a crash
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    if not words or words[0].startswith("-"):
        _overview().parse_args(words or ["--help"])
    if words[0] not in COMMANDS:
        raise InputError(_unknown(words[0]))
    name, rest = words[0], words[1:]
    command = importlib.import_module(f"pipeloom.cli.commands.{COMMANDS[name][0]}")
    parser = Parser(
        prog=f"pipeloom {name}",
        description=command.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_arguments(parser)
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object on standard output, nothing else"
    )
    args = parser.parse_args(rest)
    code: int = command.run(args)
    return code


def _unknown(name: str) -> str:
    near = get_close_matches(name, COMMANDS, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return (
        f"COMMAND: expected one of {', '.join(COMMANDS)}, got {name!r}{hint} (see pipeloom --help)"
    )


def _overview() -> Parser:
    """The parser that lists the commands; it never runs one."""
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


def _fail(error: PipeloomError, *, as_json: bool) -> int:
    """One line a fault on standard error, of hundreds the first; with ``--json`` one object with
    all of them on standard output as well."""
    lines = str(error).splitlines()
    for line in lines[:MOST_LINES]:
        _say(line)
    if len(lines) > MOST_LINES:
        _say(f"and {len(lines) - MOST_LINES} more (--json lists all)")
    if os.environ.get(TRACEBACK) and getattr(error, "details", ""):
        print(error.details, file=sys.stderr)  # type: ignore[attr-defined]
    answer: dict[str, Any] = {"error": lines}
    if isinstance(error, InfeasibleError):
        answer = error.to_dict()
    elif isinstance(error, InvalidScheduleError):
        answer = {"status": "invalid", "violations": list(error.violations)}
    if as_json:
        print(json.dumps(answer))
    return error.exit_code


def _complain(line: str, *, as_json: bool) -> None:
    _say(line)
    if as_json:
        print(json.dumps({"error": [line]}))


def _say(line: str) -> None:
    print(f"pipeloom: {line}", file=sys.stderr)
