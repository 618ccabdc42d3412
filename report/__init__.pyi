from .attribution import attribute as attribute
from .chrome_trace import trace_events as trace_events
from .summaries import scope as scope
from .svg.frontier import Frontier as Frontier
from .svg.frontier import FrontierPoint as FrontierPoint
from .svg.frontier import frontier_svg as frontier_svg
from .svg.timeline import timeline_svg as timeline_svg
