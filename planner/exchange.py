"""``export`` and ``import_``: schedules in the formats of other systems."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from pipeloom.compiler.exporters import EXPORTERS
from pipeloom.compiler.exporters.launch_flags import FILE
from pipeloom.compiler.exporters.torch_csv import stages_in
from pipeloom.ir.documents.json_reader import read_text
from pipeloom.ir.errors import InputError
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.schedule import Schedule

from .inputs.documents import named, naming, read_schedule
from .inputs.fixed_cut import Cuts
from .inputs.problem_setup import ProfileSource
from .requests.fields import takes
from .requests.files import ExportRequest, ImportRequest

MEGATRON = "megatron-layout"
ONE_SEQUENCE = (
    "one sequence per microbatch is assumed, as the profile has no micro_batch: --micro-batch-size "
    "sets it"
)


@dataclass(frozen=True, slots=True)
class Exported:
    """A schedule as ``text`` in another system's ``format``.

    ``summary``: what the format is. ``flags``: command-line flags of that system, in which ``FILE``
    stands for the name of the file with the text. ``notes``: what no flag can express.
    """

    text: str
    format: str
    summary: str
    flags: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def launch(self, file: str) -> str:
        """Return the flags and notes, one per line, for a text that is stored in ``file``."""
        notes = (f"note: {note}" for note in self.notes_of(file))
        return "\n".join([*self.flags_of(file), *notes])

    def flags_of(self, file: str) -> list[str]:
        """Return the flags for a text that is stored in ``file``. Flags contain the name of this
        file, except for a Megatron layout, whose text is itself the value of a flag."""
        name = self.text.strip() if self.format == MEGATRON else file
        return [flag.replace(FILE, name) for flag in self.flags]

    def notes_of(self, file: str) -> list[str]:
        """Return the notes for a text that is stored in ``file``."""
        return [note.replace(FILE, file) for note in self.notes]

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``export --json`` prints, without the file's name."""
        return {
            "format": self.format,
            "lines": len(self.text.splitlines()),
            "flags": list(self.flags),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        return self.text


@takes(ExportRequest)
def export(request: ExportRequest) -> Exported:
    """Export a schedule (an object, a JSON object or a file) in the format ``to``: ``torch-csv``,
    ``torchtitan``, ``torchtitan-toml`` or ``megatron-layout``.

    The arguments are the fields of :class:`.ExportRequest`. If neither ``micro_batch_size`` nor the
    profile's ``micro_batch`` is given, one sequence per microbatch is assumed, and a note says so
    if a flag depends on it.

    Raises InputError if the format or its flags cannot express the schedule.
    """
    found, where = read_schedule(request.schedule)
    to, given = request.to, request.micro_batch_size
    exporter = EXPORTERS.get(to)
    if exporter is None:
        raise InputError(f"to: expected one of {', '.join(EXPORTERS)}, got {to!r}")
    size = given or found.problem.profile.micro_batch or 1
    if given is not None and (isinstance(given, bool) or given < 1):
        raise InputError(f"micro_batch_size: expected a whole number from 1 on, got {given!r}")
    with naming(where):
        text = exporter.write(found)
        launch = exporter.launch(found, size)
    used, notes = launch != exporter.launch(found, size + 1), launch.notes
    if used and given is None and found.problem.profile.micro_batch is None:
        notes += (ONE_SEQUENCE,)
    if not used and given is not None:
        raise InputError(
            f"micro_batch_size: expected none, as no flag that goes with this {to} has it, got "
            f"{size}"
        )
    return Exported(text, to, exporter.summary, launch.flags, notes)


@takes(ImportRequest)
def import_(request: ImportRequest) -> Schedule:
    """Import the schedule in ``file``, in the format ``from_``, with the times of ``profile``.

    ``from_``: ``torch-csv``, an order of ops. ``partition`` chooses how a profile by layers is cut:
    ``balanced`` (the default), ``even``, or a schedule whose cut is used. Raises InputError if the
    file or the profile is invalid.
    """
    source, where = request.from_, named(request.file)
    if source not in IMPORTED:
        raise InputError(f"from_: expected one of {', '.join(IMPORTED)}, got {source!r}")
    text = read_text(os.fspath(request.file), expected=source)
    if text.lstrip().startswith("{"):
        raise InputError(f"{where}: is JSON; expected a file of {source}")
    given = ProfileSource.of(request.profile, request.progress)
    cuts = Cuts.of(given, request.partition)
    fitting = cuts.into(stages_in(text)) if cuts else _split(given.stages, stages_in(text))
    exporter = EXPORTERS[source]
    assert exporter.read is not None
    return exporter.read(text, fitting, where)


IMPORTED = tuple(name for name, each in EXPORTERS.items() if each.read is not None)


def _split(profile: Profile, stages: int) -> Profile:
    """Return the profile with the single stage of each rank cut into equal chunks, so that there
    are ``stages`` stages in total. If that is impossible, return the profile unchanged."""
    chunks, rest = divmod(stages, profile.ranks)
    one_each = profile.num_stages == profile.ranks
    return profile.split(chunks) if one_each and chunks > 1 and not rest else profile
