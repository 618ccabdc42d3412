"""The names that ``import pipeloom`` offers."""

import ast
import sys
from pathlib import Path

import pytest

import pipeloom


@pytest.mark.parametrize("name", pipeloom.__all__)
def test_each_public_name_is_there(name: str) -> None:
    there = {"solve": "optimize"}.get(name, name)
    assert getattr(pipeloom, name).__name__ == there


def test_dir_lists_them() -> None:
    assert set(pipeloom.__all__) < set(dir(pipeloom))


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(str(pipeloom.__file__)).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.asname
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == set(pipeloom.__all__)


@pytest.mark.parametrize("name", ["Pipeline", "ModelSource"])
def test_without_torch_the_message_says_how_to_get_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [m for m in sys.modules if m.startswith("pipeloom.runtime")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError) as caught:
        getattr(pipeloom, name)
    assert str(caught.value) == (
        f"pipeloom.{name} needs PyTorch: pip install 'pipeloom[runtime]', "
        "or in a checkout pip install '.[runtime]'"
    )


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'optimise'"):
        pipeloom.optimise  # noqa: B018
