"""Schedules in the formats of other systems, one file per format, and the flags to launch them
with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.schedule import Schedule

from . import megatron_layout, torch_csv, torchtitan
from .launch_flags import Launch, for_megatron, for_torch_csv, for_torchtitan


@dataclass(frozen=True, slots=True)
class Exporter:
    """A file format of another system.

    ``write(schedule)`` returns the text of a file. ``launch(schedule, size)`` returns the flags to
    use with that file if microbatches have ``size`` sequences. ``read(text, profile, where)``
    returns the schedule that the text of a file describes, with the times of ``profile``; ``where``
    names the text in messages, such as a file's path. ``read`` is None if the format cannot be
    read. ``write`` and ``read`` raise InputError for what the format or the schedule cannot
    express. ``summary`` describes the format; ``suffix`` is the usual suffix of its files.
    """

    summary: str
    suffix: str
    write: Callable[[Schedule], str]
    launch: Callable[[Schedule, int], Launch]
    read: Callable[[str, Profile, str], Schedule] | None = None


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
    ),
    "torchtitan-toml": Exporter(
        "the same with its key, for a TOML file",
        ".toml",
        torchtitan.write_toml,
        for_torchtitan,
    ),
    "megatron-layout": Exporter(
        "the layers of each stage: Megatron's --pipeline-model-parallel-layout",
        ".txt",
        megatron_layout.write,
        for_megatron,
    ),
}
