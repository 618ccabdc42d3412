"""Plans compared with published configurations, and plans for 8 to 4,096 GPUs."""

from .. import parts
from . import planned, scaled

ROOMS = ("ir", "solver", "planner")
_ALL = parts(planned, scaled)
cases, measure, judge, columns = _ALL.cases, _ALL.measure, _ALL.judge, _ALL.columns
