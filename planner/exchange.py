"""``export`` and ``import_``: schedules in other systems' formats."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

from pipeloom.compiler.exporters import EXPORTERS
from pipeloom.ir.errors import InputError
from pipeloom.ir.formats.json_reader import read_text
from pipeloom.ir.model.schedule import Schedule

from .inputs.documents import Document, FilePath, Planned, named, naming, read_schedule
from .inputs.problem_setup import ProfileLike, ProfileSource
from .partition.fixed_cut import CutLike, Cuts
from .solving.progress import Listener


@dataclass(frozen=True, slots=True)
class Exported:
    """A schedule as ``text`` in another system's ``format``, which ``summary`` describes."""

    text: str
    format: str
    summary: str

    def to_dict(self) -> dict[str, Any]:
        """The object that ``export --json`` prints, but for the file's name."""
        return {"format": self.format, "lines": len(self.text.splitlines())}

    def __str__(self) -> str:
        return self.text


def export(schedule: Schedule | Planned | Document, to: str) -> Exported:
    """The schedule, an object, a JSON object or a file of one, in the format ``to``: ``torch-csv``,
    ``torchtitan``, ``torchtitan-toml`` or ``megatron-layout``.

    Raises InputError for what the format cannot express.
    """
    found, where = read_schedule(schedule)
    exporter = EXPORTERS.get(to)
    if exporter is None:
        raise InputError(f"to: expected one of {', '.join(EXPORTERS)}, got {to!r}")
    with naming(where):
        return Exported(exporter.write(found), to, exporter.summary)


def import_(
    file: FilePath,
    source: str,
    profile: ProfileLike | ProfileSource,
    *,
    partition: CutLike | None = None,
    progress: Listener | None = None,
) -> Schedule:
    """The schedule in ``file``, in the format ``source`` (``torch-csv``), timed by ``profile``.

    ``partition``: how a profile by layers is cut, ``balanced`` (the default), ``even`` or a
    schedule whose cut is taken. Raises InputError where the file or the profile is wrong.
    """
    exporter = EXPORTERS.get(source)
    if exporter is None or exporter.read is None:
        able = ", ".join(name for name, each in EXPORTERS.items() if each.read is not None)
        raise InputError(f"source: expected one of {able}, got {source!r}")
    text = read_text(os.fspath(file), expected=source)
    if text.lstrip().startswith("{"):
        raise InputError(f"{named(file)}: is JSON; expected a file of {source}")
    given = ProfileSource.of(profile, progress)
    cuts = Cuts.of(given, partition)
    return exporter.read(text, cuts.into(_stages(text)) if cuts else given.stages, named(file))


def _stages(text: str) -> int:
    """How many the cells name."""
    return 1 + max((int(number) for number in re.findall(r"\b([0-9]{1,6})[FIWB]", text)), default=0)
