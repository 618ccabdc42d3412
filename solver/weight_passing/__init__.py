"""The optimizer where weights travel."""

from .search import WeightSearch as WeightSearch
