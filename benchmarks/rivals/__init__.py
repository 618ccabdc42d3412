"""Comparisons with other methods on the same instances.

The methods cut a model into stages, order microbatches that differ, pack sequences, or run whatever
op is ready.
"""

from .. import parts
from . import packing, partition, readiness, unlike

ROOMS = ("ir", "solver", "planner")
_ALL = parts(partition, unlike, packing, readiness)
cases, measure, judge, columns = _ALL.cases, _ALL.measure, _ALL.judge, _ALL.columns
