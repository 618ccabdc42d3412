"""Data files that are installed with the package."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any


def packaged(package: str, name: str) -> Any:
    """Return the content of the JSON file ``name`` in the folder of ``package``."""
    return json.loads(files(package).joinpath(name).read_text(encoding="utf-8"))
