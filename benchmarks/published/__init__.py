"""Published figures of schedules, built or predicted again: tables 5 and 8 of the Zero Bubble
paper, formulas of the DeepSeek-V3 report, WeiPipe's bubbles, bytes, throughput and memory."""

from .. import parts
from . import formulas, rings, streamed, tables, throughput, v_schedules

ROOMS = ("ir", "solver")
_ALL = parts(tables, v_schedules, formulas, rings, streamed, throughput)
cases, measure, judge, columns = _ALL.cases, _ALL.measure, _ALL.judge, _ALL.columns
