"""The site's build: which snippets of a page are run, and the targets of its links."""

from __future__ import annotations

from docs.tools.public_names import undocumented
from docs.tools.repository_links import LINK, ROOT, _prose


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
