"""Helpers for the tests of the command line."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from unittest.mock import patch

from tests.support.inner import main


@dataclass(frozen=True)
class Done:
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        value = json.loads(self.out)
        assert isinstance(value, dict)
        return value

    @property
    def refusal(self) -> str:
        """The single line of a command that refused its input, with exit code 2 and no output."""
        assert (self.code, self.out) == (2, ""), self.err
        (line,) = self.err.splitlines()
        return line


Command = Callable[..., Done]


def called(*words: object, given: bytes = b"", sink: IO[bytes] | None = None) -> Done:
    """Run a command in this process with ``given`` as standard input; output may go to a
    ``sink``."""
    out, err = sink or io.BytesIO(), io.StringIO()
    stream = io.TextIOWrapper(out, write_through=isinstance(out, io.RawIOBase))
    reads = patch("sys.stdin", io.TextIOWrapper(io.BytesIO(given)))
    with redirect_stdout(stream), redirect_stderr(err), reads:
        code = main([str(word) for word in words])
    answer = out.getvalue().decode() if isinstance(out, io.BytesIO) else ""
    return Done(code, answer, err.getvalue())


def written(path: Path, document: object) -> Path:
    """Write ``document`` to the file; returns its path."""
    path.write_text(json.dumps(document))
    return path


def untimed(value: Any) -> Any:
    """The document without solve times."""
    if isinstance(value, dict):
        return {key: untimed(each) for key, each in value.items() if key != "solve_seconds"}
    return [untimed(each) for each in value] if isinstance(value, list) else value


def without_none(document: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if value is not None}


def profile_document(**changes: Any) -> dict[str, Any]:
    """A profile with two ranks, one stage each, and T_F = T_B = T_W = 1; ``None`` removes a key."""
    stage = {"t_f": 1.0, "t_b": 1.0, "t_w": 1.0, "m_b": 1.0, "m_w": 0.5}
    document = {
        "format": "pipeloom.profile",
        "version": 1,
        "name": "small",
        "stages": [stage, dict(stage)],
        "ranks": 2,
        "t_comm": 0.0,
    } | changes
    return without_none(document)


def layers_document(**changes: Any) -> dict[str, Any]:
    """A profile with two ranks, an embedding, six blocks, and a head that cannot be cut from the
    loss."""
    cost = {"t_f": 1.0, "t_b": 2.0, "t_w": 1.0, "m_b": 1.0, "m_w": 0.5, "activation_bytes": 8.0}
    light = cost | {"t_f": 0.5, "t_b": 0.0, "t_w": 0.5, "m_b": 0.25, "m_w": 0.25}
    heavy = cost | {"t_f": 2.0, "t_w": 2.0, "weight_bytes": 20.0, "with_next": True}
    loss = {"t_f": 0.5, "t_b": 0.5, "t_w": 0.0, "m_b": 1.0, "m_w": 0.0}
    document = {
        "format": "pipeloom.profile",
        "version": 1,
        "name": "layered",
        "layers": [
            {"name": "emb", "kind": "embedding", **light, "weight_bytes": 20.0},
            {"name": "layers.{}", "repeat": 6, **cost, "weight_bytes": 10.0},
            {"name": "norm", "kind": "head", "modules": ["norm", "out"], **heavy},
            {"name": "loss", "kind": "loss", "modules": [], **loss},
        ],
        "ranks": 2,
        "t_comm": 0.0,
    } | changes
    return without_none(document)
