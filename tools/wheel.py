"""Builds the wheel and the sdist of the last commit in ``dist``, checks them, and tries the wheel
in clean environments.

Usage: ``python -m tools.wheel [--torch] [PYTHON ...]``. By default, the wheel is tried with each of
the interpreters ``python3.11`` to ``python3.14`` that is on the path or that pyenv has; one line
names those that are not there. Dependencies are the newest that pip finds. With ``--torch``, the
extra ``runtime`` is then tried with the first interpreter and the versions of constraints.txt. The
first failure ends the program.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
"""The versions of Python that the wheel is tried with."""
BESIDE_THE_LIBRARY = {"LICENSE", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg"}
"""Files of the sdist that are not below ``src``."""
PLANNING = """
import sys, pipeloom
for name in pipeloom.__all__:
    try:
        getattr(pipeloom, name)
    except ImportError as error:
        assert "pip install 'pipeloom[runtime]'" in str(error), error
assert "torch" not in sys.modules
print("pipeloom", pipeloom.__version__)
"""
"""Imports all public names without torch, and prints what ``pipeloom --version`` prints."""
PROFILE = "examples/profiles/zb-6.2b.json"
COMMANDS = (
    ("optimize", PROFILE, "-m", "24", "--memory-limit", "16", "--time-limit", "5", "-o", "s.json"),
    ("verify", "s.json"),
    ("show", "s.json", "-o", "s.html"),
    ("compile", "s.json", "-o", "program.json"),
    ("predict", "llama-2-7b"),
    ("serve", "--help"),
)
TRAINING = (
    ("profile", "--model", "examples.gpt:GPT", "--stages", "2", "--ranks", "2", "-o", "p.json"),
    ("optimize", "p.json", "-m", "4", "--time-limit", "2", "-o", "t.json"),
    ("compile", "t.json", "-o", "t-program.json"),
    ("run", "t-program.json", "--model", "examples.gpt:GPT", "--steps", "2"),
)


def build(source: Path) -> Path:
    """Build the sdist of a checkout, and from it the wheel. Checks both, and returns the wheel."""
    wanted = _library(source / "src")
    shutil.rmtree(DIST, ignore_errors=True)
    _call(sys.executable, "-m", "build", "--outdir", DIST, source)
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    _call(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    _call(sys.executable, "-m", "check_wheel_contents", wheel)
    _check_contents(wanted, wheel, sdist)
    return wheel


def _library(source: Path) -> set[str]:
    """Return the files of the library, without pages and settings of tools."""
    return {
        str((Path(folder) / name).relative_to(source))
        for folder, _, names in os.walk(source, followlinks=True)
        for name in names
        if not name.endswith((".md", ".toml"))
    }


def _check_contents(wanted: set[str], wheel: Path, sdist: Path) -> None:
    """Fail unless wheel and sdist contain all files of the library, and no others."""
    with zipfile.ZipFile(wheel) as packed:
        _compare(wheel, wanted, (x for x in packed.namelist() if ".dist-info/" not in x))
    with tarfile.open(sdist) as archive:
        files = [x.name.partition("/")[2] for x in archive if x.isfile()]
    own = (x for x in files if ".egg-info/" not in x)
    _compare(sdist, {f"src/{x}" for x in wanted} | BESIDE_THE_LIBRARY, own)


def _compare(archive: Path, wanted: set[str], got: Iterator[str]) -> None:
    if wrong := wanted.symmetric_difference(got):
        sys.exit(f"{archive.name}: missing, or not of the library: {', '.join(sorted(wrong))}")


def try_wheel(python: str, wheel: Path, source: Path, torch: bool) -> None:
    """Install the wheel in a clean environment, and run its commands in the checkout ``source``,
    whose root has no importable library: without extras, with ``web``, and with ``runtime``."""
    with TemporaryDirectory() as folder:
        _call(python, "-m", "venv", folder)
        own = Path(folder, "bin", "python")

        def pip(extra: str, *options: str | Path) -> None:
            _call(own, "-m", "pip", "install", "-q", f"{wheel}{extra}", *options)

        def pipeloom(*words: str) -> str:
            return _call(Path(folder, "bin", "pipeloom"), *words, cwd=source)

        pip("")
        shown, version = _call(own, "-c", PLANNING, cwd=source), pipeloom("--version")
        if not (shown == version == f"pipeloom {wheel.name.split('-')[1]}\n"):
            sys.exit(f"{wheel.name}: expected its version, got {shown!r} and {version!r}")
        _each(pipeloom, COMMANDS)
        pip("[web]")
        _try_page(Path(folder, "bin", "pipeloom"), source)
        _call(own, "-m", "pip", "check")
        if torch:
            pip("[runtime]", "-c", ROOT / "constraints.txt")
            _each(pipeloom, TRAINING)


def _each(command: Callable[..., object], lines: Sequence[Sequence[str]]) -> None:
    for words in lines:
        command(*words)


def _try_page(pipeloom: Path, source: Path) -> None:
    """Fail unless ``pipeloom serve`` answers with its page and the presets, and ends at Ctrl-C."""
    words: list[str | Path] = [pipeloom, "serve", "--port", "0", "--json"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, cwd=source, env=_environment()) as server:
        try:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"]
            with urlopen(url, timeout=30) as answer:
                page = answer.read()
            assert all(part in page for part in (b"</html>", b"llama-2-7b"))
        finally:
            server.send_signal(signal.SIGINT)
    if server.returncode:
        sys.exit(f"pipeloom serve: expected exit code 0 after Ctrl-C, got {server.returncode}")


def interpreters() -> list[str]:
    """Return an interpreter of each of :data:`VERSIONS` that is installed; print the others."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = []
    for version in VERSIONS:
        places = [shutil.which(f"python{version}"), *pyenv.glob(f"{version}.*/bin/python")]
        working = [str(place) for place in places if place is not None and _starts(place)]
        found += working[:1]
        if not working:
            print(f"Python {version} is not installed: not tried")
    return found


def _starts(python: str | Path) -> bool:
    """Whether an interpreter starts; links of pyenv to versions that are not active do not."""
    return not subprocess.run([python, "-V"], capture_output=True, check=False).returncode


def _environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}


def _call(*words: str | Path, **options: Any) -> str:
    """Run a command and return its output. If it fails, print the output and exit."""
    print("$", *words, flush=True)
    done: subprocess.CompletedProcess[str] = subprocess.run(
        words, env=_environment(), capture_output=True, text=True, check=False, **options
    )
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}exit code {done.returncode}")
    return done.stdout


def main(arguments: list[str]) -> None:
    """Build, check and try the wheel."""
    parser = argparse.ArgumentParser(prog="python -m tools.wheel", description=__doc__)
    parser.add_argument("pythons", nargs="*", metavar="PYTHON", help="interpreters to try")
    parser.add_argument("--torch", action="store_true", help="try the extra runtime, too")
    options = parser.parse_args(arguments)
    pythons = options.pythons or interpreters()
    with TemporaryDirectory() as folder:
        source = Path(folder)
        _call("git", "clone", "-q", "--depth", "1", ROOT.as_uri(), source)
        wheel = build(source)
        for number, python in enumerate(pythons):
            try_wheel(python, wheel, source, options.torch and number == 0)
    versions = [_call(python, "-V").strip() for python in pythons]
    print(f"{wheel.name} and its sdist are sound; tried with {', '.join(versions)}")


if __name__ == "__main__":
    main(sys.argv[1:])
