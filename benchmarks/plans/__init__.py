"""Plans beside published configurations, and plans on more and more GPUs."""

from .. import parts
from . import planned, scaled
from .scaled import files as files

ROOMS = ("ir", "solver", "planner")
_ALL = parts(planned, scaled)
cases, measure, judge, columns = _ALL.cases, _ALL.measure, _ALL.judge, _ALL.columns
