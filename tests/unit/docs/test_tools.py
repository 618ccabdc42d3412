"""The site's build: which snippets of a page are run, and the targets of its links."""

from __future__ import annotations

import re

from docs.tools.format_keys import OBJECTS, keys
from docs.tools.public_names import undocumented
from docs.tools.repository_links import LINK, ROOT, _prose

PAGES_OF_FORMATS = "formats.md", "predict.md"


def test_links_lead_somewhere_in_a_checkout_too() -> None:
    """Targets that exist only on the site are named there without a link."""
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


def test_every_public_name_has_a_docstring() -> None:
    assert undocumented() == []


def test_every_key_of_a_file_is_explained() -> None:
    pages = [(ROOT / "docs" / name).read_text(encoding="utf-8") for name in PAGES_OF_FORMATS]
    found = {key for record in OBJECTS.values() for key, _, _ in keys(record)}
    assert {key for key in found if not re.search(rf"[`\"]{key}[`\"]", "".join(pages))} == set()
