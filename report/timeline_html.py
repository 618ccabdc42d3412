"""The timeline as an HTML page: wheel to zoom, drag to pan, double click to reset, hover for
details of an op."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files

from pipeloom.ir.model.schedule import Schedule

from .svg.timeline import heading, timeline_svg


def timeline_html(panels: Sequence[tuple[str | None, Schedule]], *, memory: bool = False) -> str:
    """The text of a self-contained HTML page with the picture of :func:`timeline_svg`."""
    page = files(__package__).joinpath("timeline.html").read_text(encoding="utf-8")
    title = escape(heading([schedule for _, schedule in panels]))
    svg = timeline_svg(panels, memory=memory)
    return page.replace("<!--title-->", title).replace("<!--svg-->", svg)
