"""Plans beside published configurations, and plans and schemes on more and more GPUs."""

from .. import parts
from . import curves, planned, scaled
from .scaled import files as files

ROOMS = ("ir", "solver", "planner")
_ALL = parts(planned, curves, scaled)
cases, measure, judge, columns = _ALL.cases, _ALL.measure, _ALL.judge, _ALL.columns
