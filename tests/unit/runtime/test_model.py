"""Loading a model source by name: what works, and one readable line for what does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeloom.ir.errors import InputError
from pipeloom.runtime.model import METHODS, load_source

GOOD = "class Source:\n" + "".join(f"    def {name}(self, *_): ...\n" for name in METHODS)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    text = GOOD + (
        "source = Source()\n"
        "class Partial:\n    def loss(self): ...\n"
        "def needs(argument): ...\n"
        "number = 3\n"
    )
    name = f"models_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / f"broken_{name}.py").write_text("raise RuntimeError('no data here')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


@pytest.mark.parametrize("attribute", ["source", "Source"])
def test_an_instance_or_a_callable_is_a_source(module: str, attribute: str) -> None:
    assert type(load_source(f"{module}:{attribute}")).__name__ == "Source"


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        ("missing", "has no attribute missing"),
        ("number", "int has no stages, tied, loss, batch, optimizer"),
        ("Partial", "Partial has no stages, tied, batch, optimizer"),
        ("needs", "calling it without arguments failed: TypeError"),
    ],
)
def test_what_is_wrong_is_named(module: str, attribute: str, expected: str) -> None:
    with pytest.raises(InputError, match=expected) as caught:
        load_source(f"{module}:{attribute}")
    assert str(caught.value).startswith(f"{module}:{attribute}: ")
    assert "\n" not in str(caught.value)


def test_names_and_modules_that_cannot_be_loaded(module: str) -> None:
    for name, expected in {
        "nothing": "expected MODULE:ATTRIBUTE",
        "nowhere_at_all:x": "No module named",
        f"broken_{module}:x": "RuntimeError: no data here",
    }.items():
        with pytest.raises(InputError, match=expected):
            load_source(name)
