"""Published figures of schedules, compared with schedules built here or with predictions.

The figures are those of tables 5 and 8 of the Zero Bubble paper, the formulas of the DeepSeek-V3
report, and WeiPipe's bubbles, bytes, throughput and memory.
"""

from .. import parts
from . import formulas, rings, streamed, tables, throughput, v_schedules

ROOMS = ("ir", "solver")
_ALL = parts(tables, v_schedules, formulas, rings, streamed, throughput)
cases, measure, judge, columns = _ALL.cases, _ALL.measure, _ALL.judge, _ALL.columns
