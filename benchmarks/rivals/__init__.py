"""Methods of others on the same instances: cuts of a model into stages, orders of microbatches that
differ, and packings of sequences."""

from .. import parts
from . import packing, partition, unlike

ROOMS = ("ir", "solver", "planner")
_ALL = parts(partition, unlike, packing)
cases, measure, judge, columns = _ALL.cases, _ALL.measure, _ALL.judge, _ALL.columns
