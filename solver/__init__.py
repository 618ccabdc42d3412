"""Schedules for problems: families, lower bounds, search and exact solvers.

The public names are listed in ``__init__.pyi``; each is loaded when it is first used.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
