"""Results of a part: lines in a file, so that a part that dies leaves those it had."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Tell = Callable[[str, Any], None]


def telling(path: Path) -> Tell:
    def tell(key: str, value: Any) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": key, "value": value}) + "\n")

    return tell


def told(path: Path) -> dict[str, Any]:
    """The results of a part so far, without a line that was being written when it died."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        found[entry["key"]] = entry["value"]
    return found


@contextmanager
def guarded(tell: Tell, key: str) -> Iterator[None]:
    """A context in which an error is told, in one line, under ``key``, and ends nothing else."""
    try:
        yield
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        tell(key, {"failed": f"{type(error).__name__}: {error}".splitlines()[0][:500]})
