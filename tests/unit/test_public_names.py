"""The public names of ``import pipeloom``."""

import sys

import pytest

import pipeloom
from tools.api import NAMES, listed


@pytest.mark.parametrize("name", pipeloom.__all__)
def test_each_public_name_is_there(name: str) -> None:
    there = {"solve": "optimize"}.get(name, name)
    assert getattr(pipeloom, name).__name__ == there


def test_signatures_change_only_on_purpose() -> None:
    assert listed() == NAMES.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["Pipeline", "ModelSource"])
def test_without_torch_the_message_says_how_to_get_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [m for m in sys.modules if m.startswith("pipeloom.runtime")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(vars(pipeloom), name, raising=False)
    with pytest.raises(ImportError) as caught:
        getattr(pipeloom, name)
    assert str(caught.value) == (
        f"pipeloom.{name} needs PyTorch: pip install 'pipeloom[runtime]', "
        "or in a checkout pip install '.[runtime]'"
    )
