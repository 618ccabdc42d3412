"""Comparisons with other methods on the same instances.

The methods cut a model into stages, order microbatches that differ, or pack sequences.
"""

from .. import parts
from . import packing, partition, unlike

ROOMS = ("ir", "solver", "planner")
_ALL = parts(partition, unlike, packing)
cases, measure, judge, columns = _ALL.cases, _ALL.measure, _ALL.judge, _ALL.columns
