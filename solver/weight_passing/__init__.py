"""The optimizer where weights travel."""

from .search import Memory as Memory
from .search import WeightSearch as WeightSearch
