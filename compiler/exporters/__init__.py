"""Schedules in other systems' formats, and back where they can be read: one file a format, and what
flags go with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.schedule import Schedule

from . import megatron_layout, torch_csv, torchtitan
from .launch_flags import Launch, for_megatron, for_torch_csv, for_torchtitan


@dataclass(frozen=True, slots=True)
class Exporter:
    """A format: ``write(schedule)`` is its text, ``launch(schedule, size)`` the flags that go with
    it for microbatches of so many sequences, ``read(text, profile, where)`` the schedule again.

    ``where`` names the text in messages (a file's path, say). Both raise InputError for what the
    format or the schedule cannot express. ``names_modules``: the text has the model's own names.
    """

    summary: str
    suffix: str
    write: Callable[[Schedule], str]
    launch: Callable[[Schedule, int], Launch]
    read: Callable[[str, Profile, str], Schedule] | None = None
    names_modules: bool = False


EXPORTERS: dict[str, Exporter] = {
    "torch-csv": Exporter(
        "the CSV that torch.distributed.pipelining loads (compute only)",
        ".csv",
        torch_csv.write,
        for_torch_csv,
        torch_csv.read,
    ),
    "torchtitan": Exporter(
        "the modules of each stage: torchtitan's module_fqns_per_model_part",
        ".json",
        torchtitan.write,
        for_torchtitan,
        names_modules=True,
    ),
    "torchtitan-toml": Exporter(
        "the same with its key, for a TOML file",
        ".toml",
        torchtitan.write_toml,
        for_torchtitan,
        names_modules=True,
    ),
    "megatron-layout": Exporter(
        "the layers of each stage: Megatron's --pipeline-model-parallel-layout",
        ".txt",
        megatron_layout.write,
        for_megatron,
    ),
}
