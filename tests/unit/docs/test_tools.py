"""What builds the site: which snippets of a page are tried, and where its links lead there."""

from __future__ import annotations

from docs.tools.public_names import undocumented
from docs.tools.repository_links import LINK, ROOT, _prose


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


def test_every_public_name_has_a_docstring() -> None:
    assert undocumented() == []
