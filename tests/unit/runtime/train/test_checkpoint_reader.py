"""A malicious checkpoint cannot execute code."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, Metadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from pipeloom.ir import InputError
from pipeloom.runtime import read_run
from tests.support.inside import saved_keys

METADATA = ".metadata"
pytestmark = pytest.mark.filterwarnings("ignore")


class Touching:
    """Creates a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def saved(folder: Path, step: object) -> Path:
    run = {"step": step, "processes": 1}
    save({"run": run, "x": torch.ones(2)}, checkpoint_id=folder, no_dist=True)
    return folder


def test_a_value_is_a_number_or_words_and_runs_nothing(tmp_path: Path) -> None:
    folder, mark = saved(tmp_path / "own", Touching(tmp_path / "mark")), tmp_path / "mark"
    with pytest.raises(InputError, match=f"^{folder}: cannot be loaded: rank 0: Unpickl") as caught:
        read_run(folder)
    assert "\n" not in str(caught.value)
    assert not mark.exists()
    state: dict[str, Any] = {"run": {"step": 0}, "x": torch.zeros(2)}
    load(state, checkpoint_id=folder, no_dist=True)  # torch's own loader executes it
    assert mark.exists()


def test_a_table_of_contents_runs_nothing(tmp_path: Path) -> None:
    folder, mark = saved(tmp_path / "own", 3), tmp_path / "mark"
    assert read_run(folder).step == 3
    (folder / METADATA).write_bytes(pickle.dumps(Touching(mark)))
    line = "cannot be read: UnpicklingError: .* has no place in a checkpoint; expected a file"
    with pytest.raises(InputError, match=f"^{folder / METADATA}: {line}"):
        saved_keys(folder)
    assert not mark.exists()
    with pytest.raises(AttributeError):
        FileSystemReader(folder).read_metadata()  # torch's own reader executes it
    assert mark.exists()


class Gets:
    """Pickled as attribute ``name`` of ``kind``, as Python 3.11.2 pickles enumerations."""

    def __init__(self, kind: object, name: str) -> None:
        self.of = (kind, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, self.of


def test_members_of_enumerations_are_read_as_every_python_writes_them(tmp_path: Path) -> None:
    table = saved(tmp_path / "own", 3) / METADATA
    member = Gets(_MEM_FORMAT_ENCODING, "TORCH_CONTIGUOUS_FORMAT")
    table.write_bytes(pickle.dumps(Metadata({"run.step": member})))
    assert saved_keys(table.parent) == {"run.step": _MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT}
    for kind, name in [(_MEM_FORMAT_ENCODING, "mro"), (torch.Size, "numel")]:
        table.write_bytes(pickle.dumps(Metadata({"run.step": Gets(kind, name)})))
        with pytest.raises(InputError, match=r"builtins.getattr has no place in a checkpoint"):
            saved_keys(table.parent)
