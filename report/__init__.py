"""Pictures of schedules: SVG, HTML, terminal and trace, and the frontier of a sweep."""

from .frontier import Frontier as Frontier
from .frontier import FrontierPoint as FrontierPoint
from .frontier import frontier_svg as frontier_svg
from .html import timeline_html as timeline_html
from .svg import timeline_svg as timeline_svg
from .terminal import timeline_text as timeline_text
from .trace import trace_events as trace_events
from .words import facts as facts
from .words import summary as summary
