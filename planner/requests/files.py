"""Requests that start from an existing file: ``compile``, ``export`` and ``import``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING

from pipeloom.ir.errors import InputError

from .fields import Request, option, place
from .kinds import COUNT, Kind, choice, stages, typed

if TYPE_CHECKING:
    from pipeloom.ir.model.schedule import Schedule

    from ..inputs.documents import Document, FilePath, Planned
    from ..inputs.fixed_cut import CutLike
    from ..inputs.problem_setup import ProfileLike, ProfileSource
    from ..solving.progress import Listener

# repeated here, as importing the exporters would load NumPy for every --help
FORMATS = ("torch-csv", "torchtitan", "torchtitan-toml", "megatron-layout")
READ_BACK = ("torch-csv",)


def _tied(text: str) -> list[int]:
    found = stages(text)
    if len(found) < 2:
        raise InputError(f"expected two stages or more, such as 0,3, got {text!r}")
    return found


@dataclass(frozen=True)
class CompileRequest(Request):
    """The arguments of :func:`pipeloom.compile`."""

    schedule: Schedule | Planned | Document = field(metadata=place("SCHEDULE"))
    """schedule file, - for standard input"""
    _: KW_ONLY
    tied: Sequence[Sequence[int]] = option("S,S", Kind(_tied), default=(), action="append")
    """stages that share parameters, whose gradients are summed; can be repeated"""
    post_validation: bool = option(default=False)
    """run the optimizer step before the norm of all gradients is known (for clipping and loss
    scaling), and undo and repeat it if the norm requires that"""
    data_parallel: bool = option(default=False)
    """average each stage's gradients over several replicas of the pipeline, starting as soon as the
    stage's last weight gradient is computed"""
    progress: Listener | None = None


@dataclass(frozen=True)
class ExportRequest(Request):
    """The arguments of :func:`pipeloom.export`."""

    schedule: Schedule | Planned | Document = field(metadata=place("SCHEDULE"))
    """schedule file, - for standard input"""
    to: str = option(kind=typed(choice(*FORMATS)), required=True)
    """format of the output"""
    _: KW_ONLY
    micro_batch_size: int | None = option("N", typed(COUNT))
    """sequences per microbatch, for the printed flags; by default, the profile's micro_batch"""


@dataclass(frozen=True)
class ImportRequest(Request):
    """The arguments of :func:`pipeloom.import_`."""

    file: FilePath = field(metadata=place("FILE"))
    """file to read, - for standard input"""
    from_: str = option(kind=typed(choice(*READ_BACK)), required=True)
    """format of the input"""
    profile: ProfileLike | ProfileSource = option("PROFILE", required=True)
    """profile with times and sizes of the stages"""
    _: KW_ONLY
    partition: CutLike | None = option("HOW")
    """how to cut a profile's layers into stages: balanced (the default) makes the longest stage as
    short as possible, even gives each stage the same number of blocks; or a schedule file, whose
    cut is used"""
    progress: Listener | None = None
