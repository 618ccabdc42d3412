"""What builds the site: which snippets of a page are tried, and where its links lead there."""

from __future__ import annotations

import pytest

from docs.tools.public_names import undocumented
from docs.tools.repository_links import LINK, ROOT, _prose, added, with_site_links
from docs.tools.snippets import snippets

PAGE = """# A page
```json title="profile.json"
{}
```
<!-- needs torch -->
```python
import torch
```
```console
$ pipeloom --version
```
"""


def test_snippets_are_blocks_that_are_not_marked() -> None:
    found = [(one.kind, one.file, one.text, one.line) for one in snippets(PAGE)]
    assert found == [
        ("json", "profile.json", "{}\n", 2),
        ("console", None, "$ pipeloom --version\n", 9),
    ]


def test_links_out_of_the_pages_lead_to_what_the_site_adds() -> None:
    page = "tutorials/own-model.md"
    text = "[a](../../examples/mlp.py), [b](../runtime.md#layers), [c](https://x.org/y)"
    assert with_site_links(page, text) == text.replace(
        "../../examples/mlp.py", "../repository/examples/mlp.py.md"
    )
    assert str(added({page: text})["repository/examples/mlp.py.md"]).startswith("# examples/mlp.py")


def test_links_of_added_pages_lead_back() -> None:
    text = "[a](../../docs/runtime.md#layers) `[b](c)`\n```\n[d](e.md)\n```"
    moved = with_site_links("repository/benchmarks/published/README.md", text)
    assert moved.startswith("[a](../../../runtime.md#layers)")
    assert moved.endswith("[d](e.md)\n```")


def test_links_lead_somewhere_in_a_checkout_too() -> None:
    """What only the site has is named there, and not linked."""
    places = "*.md", "docs/**/*.md", "benchmarks/**/*.md"
    pages = [page for place in places for page in sorted(ROOT.glob(place))]
    dead = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in pages
        for line in _prose(page.read_text(encoding="utf-8"))
        for _, link, _ in LINK.findall(line)
        if ":" not in link and not (page.parent / link).exists()
    ]
    assert dead == []


def test_a_link_to_no_file_is_named() -> None:
    with pytest.raises(FileNotFoundError, match=r"docs/page.md: links to nothing.py"):
        added({"page.md": "[a](../nothing.py)"})


def test_every_public_name_has_a_docstring() -> None:
    assert undocumented() == []
