"""``export`` and ``import_``: schedules in other systems' formats."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from pipeloom.compiler.exporters import EXPORTERS
from pipeloom.compiler.exporters.launch_flags import FILE
from pipeloom.compiler.exporters.megatron_layout import cut_of, read_parts
from pipeloom.compiler.exporters.torch_csv import stages_in
from pipeloom.ir.documents.json_reader import read_text
from pipeloom.ir.errors import InputError
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.units import counted
from pipeloom.solver.families import build_family

from .inputs.documents import named, naming, read_schedule
from .inputs.problem_setup import ProfileSource, check_microbatches, layers_of
from .partition.fixed_cut import Cuts
from .requests.fields import takes
from .requests.files import ExportRequest, ImportRequest

MEGATRON = "megatron-layout"


@dataclass(frozen=True, slots=True)
class Exported:
    """A schedule as ``text`` in another system's ``format``, which ``summary`` describes.

    ``flags``: command-line flags of that system, in which ``FILE`` stands for the file that holds
    the text; ``notes``: what no flag can express.
    """

    text: str
    format: str
    summary: str
    flags: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def launch(self, file: str) -> str:
        """The flags and notes, one per line, if the text is in ``file``."""
        notes = (f"note: {note}" for note in self.notes_of(file))
        return "\n".join([*self.flags_of(file), *notes])

    def flags_of(self, file: str) -> list[str]:
        """The flags, if the text is in ``file``."""
        name = self.text.strip() if self.format == MEGATRON else file
        return [flag.replace(FILE, name) for flag in self.flags]

    def notes_of(self, file: str) -> list[str]:
        """The notes, if the text is in ``file``."""
        return [note.replace(FILE, file) for note in self.notes]

    def to_dict(self) -> dict[str, Any]:
        """The object that ``export --json`` prints, without the file's name."""
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
    profile's ``micro_batch`` is given, it is 1, and a note says this. ``model`` provides the module
    names that ``torchtitan`` needs: a module, a model source with ``named_layers``, or names.

    Raises InputError if the format or its flags cannot express the schedule, if the model lacks a
    module of a stage, or if a parameter of the module (or a layer of the source) is in no stage.
    """
    found, where = read_schedule(request.schedule)
    to, model, given = request.to, request.model, request.micro_batch_size
    exporter = EXPORTERS.get(to)
    if exporter is None:
        raise InputError(f"to: expected one of {', '.join(EXPORTERS)}, got {to!r}")
    measured = found.problem.profile.micro_batch
    size = (measured or 1) if given is None else given
    if isinstance(size, bool) or not size >= 1:
        raise InputError(f"micro_batch_size: expected a whole number from 1 on, got {given!r}")
    if model is not None and not exporter.names_modules:
        raise InputError(f"model: expected none for {to}, which names no modules")
    with naming(where, "model"):
        text = exporter.write(found)
        if model is not None:
            _check_modules(found.problem.profile, model)
        launch = exporter.launch(found, size)
    notes = launch.notes
    if launch != exporter.launch(found, size + 1):
        notes += _size_notes(given, measured)
    elif given is not None:
        raise InputError(
            f"micro_batch_size: expected none, as no flag that goes with this {to} has it, got "
            f"{size}"
        )
    return Exported(text, to, exporter.summary, launch.flags, notes)


def _size_notes(given: int | None, measured: int | None) -> tuple[str, ...]:
    """Notes if the microbatch size is assumed, or differs from the profile's."""
    if given is None and measured is None:
        return (
            "one sequence per microbatch is assumed, as the profile has no micro_batch: "
            "--micro-batch-size sets it",
        )
    if given is not None and measured is not None and given != measured:
        return (
            f"times and memory are of microbatches of {counted(measured, 'sequence')}, as the "
            f"profile's micro_batch says, not {given}",
        )
    return ()


def _check_modules(profile: Profile, model: Any) -> None:
    """Check that the stages' modules cover the model. Raises InputError with one line per fault.

    Torchtitan omits missing modules silently.
    """
    known, needed = _names_of(model)
    errors, seen = list[str](), set[str]()
    for number, stage in enumerate(profile.stages):
        for name in (name for layer in stage.layers for name in layer.modules):
            where = f"profile: stages[{number}]: layers: modules: {name!r}"
            if name not in known:
                near = ", ".join(get_close_matches(name, known)) or ", ".join(sorted(known)[:3])
                errors.append(f"{where}: expected a module of the model, such as {near}")
            elif name in seen:
                errors.append(f"{where}: is in an earlier stage already")
            seen.add(name)
    left = [n for n in needed if not any(n == s or n.startswith(f"{s}.") for s in seen)]
    if left and not errors:
        errors.append(f"model: {left[0]} is in no stage, expected all of the model in stages")
    if errors:
        raise InputError(*errors)


def _names_of(model: Any) -> tuple[set[str], list[str]]:
    """The names of all modules, and the names that must be in some stage: parameters or layers'
    modules."""
    if hasattr(model, "named_modules"):
        return {name for name, _ in model.named_modules()}, [n for n, _ in model.named_parameters()]
    if hasattr(model, "named_layers"):
        modules = [name for layer, _ in model.named_layers() for name in layer.modules]
        return set(modules), modules
    if isinstance(model, Iterable) and not isinstance(model, str):
        return set(model), []
    raise InputError(
        "model: expected a module, a source with named_layers or names of modules, got "
        f"{type(model).__name__}"
    )


@takes(ImportRequest)
def import_(request: ImportRequest) -> Schedule:
    """Import the schedule in ``file``, in the format ``source``, with the times of ``profile``.

    ``torch-csv``: an order of ops. ``partition`` chooses the cut of a profile by layers:
    ``balanced`` (the default), ``even``, or a schedule whose cut is used. ``megatron-layout``: a
    cut of a profile by layers, with the schedule that Megatron runs on it: 1F1B or interleaved 1F1B
    with ``microbatches`` microbatches. Raises InputError if the file or the profile is invalid.
    """
    source, microbatches, where = request.source, request.microbatches, named(request.file)
    if source not in IMPORTED:
        raise InputError(f"source: expected one of {', '.join(IMPORTED)}, got {source!r}")
    text = read_text(os.fspath(request.file), expected=source)
    if text.lstrip().startswith("{"):
        raise InputError(f"{where}: is JSON; expected a file of {source}")
    given = ProfileSource.of(request.profile, request.progress)
    if source == MEGATRON:
        if request.partition is not None:
            words = f"expected none, as the layout is one, got {request.partition!r}"
            raise InputError(f"partition: {words}")
        return _from_layout(text, where, given, microbatches)
    if microbatches is not None:
        raise InputError(f"microbatches: expected none, as the file has them, got {microbatches}")
    cuts = Cuts.of(given, request.partition)
    fitting = cuts.into(stages_in(text)) if cuts else _split(given.stages, stages_in(text))
    exporter = EXPORTERS[source]
    assert exporter.read is not None
    return exporter.read(text, fitting, where)


IMPORTED = (*(name for name, each in EXPORTERS.items() if each.read is not None), MEGATRON)


def _split(profile: Profile, stages: int) -> Profile:
    """The profile with each rank's single stage split evenly into chunks, to have ``stages``
    stages."""
    chunks, rest = divmod(stages, profile.ranks)
    one_each = profile.num_stages == profile.ranks
    return profile.split(chunks) if one_each and chunks > 1 and not rest else profile


def _from_layout(
    text: str, where: str, source: ProfileSource, microbatches: int | None
) -> Schedule:
    """The schedule that Megatron runs on a layout. Megatron enforces no memory limit, so none is
    applied."""
    if not source.has_layers:
        raise InputError(
            f"{source.where}: layers: missing; expected a list for --from megatron-layout"
        )
    if microbatches is None:
        raise InputError("microbatches: missing; expected a number, which a layout does not have")
    layers, parts = layers_of(source), read_parts(text, where)
    check_microbatches(microbatches, len(parts))
    chunks, rest = divmod(len(parts), layers.ranks)
    if rest or not chunks:
        raise InputError(
            f"{where}: expected a multiple of the profile's {layers.ranks} ranks of stages, got "
            f"{len(parts)}"
        )
    profile = layers.cut(cut_of(parts, layers, where))
    family = "1f1b" if chunks == 1 else f"interleaved-1f1b:{chunks}"
    schedule = build_family(family, profile, microbatches, memory_limit=float("inf"))
    return replace(
        schedule, problem=replace(schedule.problem, memory_limit=profile.limit_from(None))
    )
