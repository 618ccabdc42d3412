"""The Python reference: all names of ``pipeloom.__all__``.

``python docs/tools/public_names.py`` lists the names without a docstring, and exits with 1 if there
are any.
"""

from __future__ import annotations

import inspect
import re
import sys
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import pipeloom

GROUPS = {
    "planner": "Planning",
    "solver": "Solving one problem",
    "ir.model": "Profiles, problems, schedules",
    "ir.formats": "Files",
    "ir.cost": "The cost model",
    "ir.verify": "Verification",
    "compiler": "Compiling",
    "report": "Pictures",
    "torch": "Inside trainers of torch.distributed.pipelining, which need torch",
    "training": "Measuring and training, which need torch",
    "runtime": "The runtime, which needs torch",
    "ir.errors": "Errors",
}
HEAD = """# Python reference

The public names of `pipeloom`. Each name is loaded when it is first used, so planning does not
need torch. Names marked as experimental may change in any version.
"""
STUB = Path(pipeloom.__file__).with_suffix(".pyi")


def python_reference() -> str:
    """Return the page, in Markdown for mkdocstrings, with the public names in groups."""
    sections: dict[str, list[str]] = {title: [] for title in GROUPS.values()}
    for name in dir(pipeloom):
        thing = getattr(pipeloom, name)
        sections[_group(thing)].append(_entry(name, thing))
    parts = [f"## {title}\n\n" + "\n".join(found) for title, found in sections.items() if found]
    return "\n".join([HEAD, *parts])


@cache
def experimental() -> set[str]:
    """Return the public names whose line in ``__init__.pyi`` has the comment ``experimental``."""
    return set(re.findall(r"as (\w+)  # experimental$", STUB.read_text(), flags=re.MULTILINE))


def undocumented() -> list[str]:
    """Return the public functions, classes and methods without a docstring."""
    missing = []
    for name in dir(pipeloom):
        thing = getattr(pipeloom, name)
        if not _documented(thing):
            missing.append(name)
        if inspect.isclass(thing):
            missing += [f"{name}.{part}" for part in _bare_members(thing)]
    return missing


def _group(thing: Any) -> str:
    home = thing.__module__.removeprefix("pipeloom.")
    for prefix, title in GROUPS.items():
        if home == prefix or home.startswith(f"{prefix}."):
            return title
    raise ValueError(f"docs/tools/public_names.py: GROUPS has no title for {home}")


def _entry(name: str, thing: Any) -> str:
    """Return the entry of a name. Members of an enum are listed without docstrings."""
    bare = "\n      show_if_no_docstring: true" if _is_enum(thing) else ""
    path = f"{thing.__module__}.{thing.__qualname__}"
    heading = f"{name} (experimental)" if name in experimental() else name
    return f"::: {path}\n    options:\n      heading: {heading}\n      toc_label: {name}{bare}\n"


def _bare_members(cls: type) -> list[str]:
    """Return public methods and properties of the class without a docstring.

    Docstrings of a base class or protocol count.
    """
    members = {name: part for name, part in vars(cls).items() if not name.startswith("_")}
    callable_ = {
        name: part
        for name, part in members.items()
        if inspect.isroutine(part) or isinstance(part, property | classmethod | staticmethod)
    }
    return [name for name in callable_ if not inspect.getdoc(getattr(cls, name))]


def _documented(thing: Any) -> bool:
    """Whether there is a docstring that Python did not generate for a dataclass or an enum."""
    text = thing.__doc__ or ""
    generated = text.startswith(f"{thing.__name__}(") if inspect.isclass(thing) else False
    return bool(text.strip()) and not generated and not (_is_enum(thing) and text == Enum.__doc__)


def _is_enum(thing: Any) -> bool:
    return inspect.isclass(thing) and issubclass(thing, Enum)


if __name__ == "__main__":
    names = undocumented()
    for name in names:
        print(f"pipeloom.{name} has no docstring", file=sys.stderr)
    sys.exit(1 if names else 0)
