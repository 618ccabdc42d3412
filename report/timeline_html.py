"""The timeline as a page: wheel to zoom, drag to pan, double click to reset, hover for an op."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from pipeloom.ir.model.schedule import Schedule

from .svg.timeline import heading, timeline_svg

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
html, body {{ margin: 0; height: 100%; background: #fff; overflow: hidden; }}
svg {{ width: 100vw; height: calc(100vh - 28px); cursor: grab; touch-action: none; }}
p {{ margin: 0; font: 12px/28px system-ui, sans-serif; color: #66727f; text-align: center; }}
</style>
{svg}
<p>wheel: zoom; drag: pan; double click: the whole; hover: what an op is</p>
<script>
const svg = document.querySelector("svg");
const whole = svg.getAttribute("viewBox").split(" ").map(Number);
let view = [...whole], drag = null;
const apply = () => svg.setAttribute("viewBox", view.join(" "));
const at = event => {{
  const point = new DOMPoint(event.clientX, event.clientY);
  return point.matrixTransform(svg.getScreenCTM().inverse());
}};
svg.addEventListener("wheel", event => {{
  event.preventDefault();
  const factor = Math.exp(event.deltaY * 0.0015), {{x, y}} = at(event);
  if (view[2] * factor > whole[2] * 2) return;
  const left = x - (x - view[0]) * factor, top = y - (y - view[1]) * factor;
  view = [left, top, view[2] * factor, view[3] * factor];
  apply();
}}, {{passive: false}});
svg.addEventListener("pointerdown", event => {{ drag = at(event); }});
svg.addEventListener("pointermove", event => {{
  if (!drag) return;
  const {{x, y}} = at(event);
  view[0] += drag.x - x;
  view[1] += drag.y - y;
  apply();
}});
addEventListener("pointerup", () => {{ drag = null; }});
svg.addEventListener("dblclick", () => {{ view = [...whole]; apply(); }});
</script>
</html>
"""


def timeline_html(panels: Sequence[tuple[str | None, Schedule]], *, memory: bool = False) -> str:
    """A self-contained HTML page with :func:`timeline_svg`."""
    title = escape(heading([schedule for _, schedule in panels]))
    return _PAGE.format(title=title, svg=timeline_svg(panels, memory=memory))
